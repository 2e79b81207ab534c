"""Pictures show what they say: known inputs give known pixels."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTConfig, ViTModel

from hf_efficient import KerformerViTConfig, KerformerViTModel, MobileViTv2Config, MobileViTv2Model
from hf_efficient.visualization import (
    LARGE,
    attention_rollout,
    colour_of,
    contact_sheet,
    draw_boxes,
    draw_classes,
    draw_context_scores,
    draw_heat,
    draw_kept_patches,
    draw_legend,
    draw_rollout,
    enlarge,
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
    assert abs(pixels[5, 15] - pixels[5, 5]).max() > 40


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


def test_rows_of_a_sheet_are_as_high_as_their_pictures():
    square = RED.resize((40, 40))
    rows = [[("a", [RED])], [("a", [RED, square])], [("a", [RED]), ("b", [square])]]
    assert [contact_sheet(x, ["one", "two"], cell=40).height for x in rows] == [32 + 24, 32 + 44, 32 + 24 + 44]


def test_boxes_and_their_names_are_seen():
    """Small ones too, and those whose names don't fit above."""
    picture = enlarge(Image.new("RGB", (64, 48)))
    assert picture.size == (LARGE, 240)
    boxes = torch.tensor([[0.5, 0.5, 0.25, 0.25], [0.95, 0.02, 0.1, 0.04], [0.2, 0.99, 0.02, 0.02]])
    names = ["cell", "platelet"]
    drawn = np.asarray(draw_boxes(picture, boxes, [0, 1, 1], names))
    for (x, y), label in (((120, 120), 0), ((160, 149), 0), ((289, 5), 1), ((61, 236), 1)):  # edges, left and below
        assert tuple(drawn[y, x]) == colour_of(label), (x, y)
    assert (drawn[120, 130:190] == 0).all(), "nothing is inside the box"
    tags = (drawn == colour_of(0)).all(-1)[78:90, 120:140]
    assert tags.mean() > 0.5, "the name stands above the box"
    assert np.array_equal(draw_boxes(picture, boxes[:0], [], names), picture)


def test_classes_have_the_colours_of_the_legend():
    classes = torch.tensor([[0, 1], [10, 255]])
    drawn = np.asarray(draw_classes(Image.new("RGB", (4, 4)), classes, opacity=1.0))
    legend = np.asarray(draw_legend([f"class {i}" for i in range(11)]))
    assert legend.shape == (6 * 20, LARGE, 3)
    for (row, column), index, (x, y) in (((0, 0), 0, (3, 3)), ((0, 3), 1, (3, 23)), ((3, 0), 10, (163, 83))):
        assert tuple(drawn[row, column]) == tuple(legend[y, x]) == colour_of(index)
    assert (drawn[3, 3] == 0).all()
    assert draw_legend([str(i) for i in range(500)]).size == (LARGE, LARGE)
