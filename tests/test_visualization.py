"""Pictures show what they say: known inputs give known pixels."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTConfig, ViTModel

from hf_efficient import KerformerViTConfig, KerformerViTModel, MobileViTv2Config, MobileViTv2Model
from hf_efficient.visualization import (
    attention_rollout,
    colour_of,
    contact_sheet,
    draw_boxes,
    draw_context_scores,
    draw_heat,
    draw_kept_patches,
    draw_rollout,
    ink_on,
    prediction_sheet,
)

RED = Image.new("RGB", (40, 20), (200, 0, 0))
SIZES = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def test_kept_patches_keep_their_pixels_and_others_darken():
    pixels = np.asarray(draw_kept_patches(RED, torch.tensor([1, 6]), (2, 4)))
    kept = (pixels == (200, 0, 0)).all(-1)
    expected = np.zeros((20, 40), dtype=bool)
    expected[:10, 10:20] = True  # patch 1: first row, second column
    expected[10:, 20:30] = True  # patch 6: second row, third column
    assert np.array_equal(kept, expected)
    assert pixels[~kept].max() < 120


@pytest.mark.parametrize("ground", ["white", "black"])
def test_kept_and_dropped_patches_differ_on_any_ground(ground):
    pixels = np.asarray(draw_kept_patches(Image.new("RGB", (40, 20), ground), torch.tensor([1]), (2, 4))).astype(int)
    assert abs(pixels[5, 15] - pixels[5, 5]).max() > 80


def test_kept_patches_must_exist():
    with pytest.raises(ValueError, match="patch_indices must lie in 0 to 7"):
        draw_kept_patches(RED, torch.tensor([8]), (2, 4))


def test_heat_is_brightest_where_it_is_largest():
    heat = torch.zeros(4, 8)
    heat[3, 7] = 5.0
    pixels = np.asarray(draw_heat(RED, heat, opacity=1.0)).astype(int).sum(-1)
    assert np.unravel_index(pixels.argmax(), pixels.shape) >= (15, 35)
    assert pixels[0, 0] < pixels[-1, -1]
    assert draw_heat(RED, torch.ones(2, 2)).size == RED.size  # a flat map is no error


def test_rollout_needs_the_same_tokens_in_all_layers():
    with pytest.raises(ValueError, match=r"attentions are of \[5, 3\] tokens: .* no token_pooling"):
        attention_rollout((torch.ones(1, 2, 5, 5), torch.ones(1, 2, 3, 3)))


def test_rollout_is_the_product_of_the_layers():
    layers = [torch.rand(1, 2, 3, 3).softmax(-1) for _ in range(3)]
    expected = torch.eye(3)
    for layer in layers:
        expected = (0.5 * layer[0].mean(0) + 0.5 * torch.eye(3)) @ expected
    torch.testing.assert_close(attention_rollout(layers)[0], expected)
    torch.testing.assert_close(attention_rollout(layers).sum(-1), torch.ones(1, 3))
    with pytest.raises(ValueError, match="output_attentions=True"):
        attention_rollout(())


@pytest.mark.parametrize("use_cls_token", [True, False])
def test_rollout_of_our_vit(use_cls_token):
    model = KerformerViTModel(KerformerViTConfig(**SIZES, use_cls_token=use_cls_token)).train()
    assert draw_rollout(model, torch.randn(1, 3, 32, 32), RED).size == RED.size
    assert model.training


def test_rollout_of_transformers_vit():
    model = ViTModel(ViTConfig(**SIZES, attn_implementation="eager"))
    assert draw_rollout(model, torch.randn(1, 3, 32, 32), RED).size == RED.size


@pytest.mark.parametrize("latent", [1, 2])
def test_context_scores_at_every_stride(latent):
    config = MobileViTv2Config(width_multiplier=0.25, n_attn_blocks=[2, 1, 1], num_latent_tokens=latent)
    model = MobileViTv2Model(config).train()
    for stride in (8, 16, 32):
        assert draw_context_scores(model, torch.randn(1, 3, 64, 64), RED, stride).size == RED.size
    assert model.training
    with pytest.raises(ValueError, match="stride=4: the model has context scores at strides 8, 16, 32"):
        draw_context_scores(model, torch.randn(1, 3, 64, 64), RED, 4)


def test_contact_sheet_holds_every_picture():
    sheet = contact_sheet([("a", [RED, RED]), ("b", [RED])], ["one", "two"], cell=40)
    red = (np.asarray(sheet) == (200, 0, 0)).all(-1).sum()
    assert red == 3 * 40 * 20


def test_contact_sheet_names_classes_with_their_colours_in_as_many_lines_as_they_need():
    few, many = (contact_sheet([("", [RED])], ["one"], cell=100, classes=names) for names in (["ant"], ["ant"] * 9))
    assert (np.asarray(few) == colour_of(0)).all(-1).sum() >= 16 * 16
    assert many.width == few.width and many.height > few.height


def test_a_small_box_is_seen_below_its_name():
    picture = Image.new("RGB", (100, 100), "white")
    drawn = np.asarray(draw_boxes(picture, torch.tensor([[0.5, 0.5, 0.1, 0.1]]), [0], ["platelets"]))
    assert all(drawn[50, 50] == 255)  # its inside
    assert all(drawn[50, 45] == colour_of(0)) and all(drawn[30, 47] == colour_of(0))


def test_prediction_sheet_has_a_row_for_four_pictures():
    sheets = [prediction_sheet([("right", [(RED, "a very long name of a class")] * n), ("wrong", [])]) for n in (4, 5)]
    red = [(np.asarray(sheet) == (200, 0, 0)).all(-1).sum() for sheet in sheets]
    assert red[1] * 4 == red[0] * 5 and sheets[1].height - sheets[0].height == 200


def test_the_colours_of_a_dozen_classes_differ():
    colours = np.array([colour_of(index) for index in range(12)])
    distances = np.abs(colours[:, None] - colours).sum(-1) + 1000 * np.eye(12)
    assert distances.min() > 75  # of 765
    assert {ink_on(tuple(colour)) for colour in colours[[0, 1, 6, 8]]} == {"white"}
    assert {ink_on(tuple(colour)) for colour in colours[[5, 7, 11]]} == {"black"}  # light blue, yellow, grey
