"""KerformerViT: sizes, equality with transformers' ViT, every mechanism, other resolutions."""

import copy

import pytest
import torch
from families import SMALL
from safetensors import safe_open
from sklearn.datasets import load_digits
from transformers import ViTConfig, ViTForImageClassification, ViTForMaskedImageModeling, ViTModel

from hf_efficient import (
    KerformerViTConfig,
    KerformerViTForImageClassification,
    KerformerViTForMaskedImageModeling,
    KerformerViTModel,
)
from hf_efficient.attention import convert_attention, list_attentions
from hf_efficient.attention.position_table import resample_positions
from hf_efficient.models.kerformer_vit.configuration_kerformer_vit import PRESETS

PIXELS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
GRID_MECHANISMS = list_attentions(needs_grid=True)


def config(**fields):
    return KerformerViTConfig(**{**SMALL, "num_labels": 5, **fields})


def stir(model, scale=0.05):
    """Off its initial values, where SE-K and biases do nothing."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * scale)
    return model


def count(name, **fields):
    with torch.device("meta"):
        model = KerformerViTForImageClassification(KerformerViTConfig.from_preset(name, num_labels=1000, **fields))
    return sum(p.numel() for p in model.parameters())


def test_parameter_counts():
    assert count("base_patch16_224") == 86_626_900
    assert count("base_patch16_224", attention="softmax") == 86_567_656
    assert count("small_patch16_224", attention="softmax") == 22_050_664
    assert count("tiny_patch16_224", attention="softmax") == 5_717_416
    assert count("base_patch32_224", attention="softmax") == 88_224_232


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    preset = KerformerViTConfig.from_preset(name, num_labels=10)
    assert preset.attention == "kerformer" and preset.num_labels == 10
    assert preset.num_patches == {"16_224": 196, "32_224": 49, "4_32": 64, "8_64": 64}[name.split("patch")[1]]


def test_an_unknown_preset_is_named():
    with pytest.raises(ValueError, match="unknown preset 'huge'; known: tiny_patch16_224"):
        KerformerViTConfig.from_preset("huge")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (ViTModel, KerformerViTModel),
        (ViTForImageClassification, KerformerViTForImageClassification),
        (ViTForMaskedImageModeling, KerformerViTForMaskedImageModeling),
    ],
    ids=lambda cls: cls.__name__,
)
def test_a_vit_checkpoint_loads_to_equal_outputs(theirs, ours, tmp_path):
    vit = stir(theirs(ViTConfig(**SMALL, encoder_stride=8, num_labels=5))).eval()
    vit.save_pretrained(tmp_path)
    model, info = ours.from_pretrained(tmp_path, attention="softmax", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    batch = {"pixel_values": PIXELS, "output_hidden_states": True}
    if ours is KerformerViTForMaskedImageModeling:
        batch["bool_masked_pos"] = torch.rand(3, 16) < 0.5
    theirs_out, ours_out = vit(**batch), model(**batch)
    assert theirs_out.keys() == ours_out.keys()
    for key, expected in theirs_out.items():
        torch.testing.assert_close(ours_out[key], expected, atol=1e-5, rtol=1e-5, msg=key)
    assert len(ours_out.hidden_states) == SMALL["num_hidden_layers"] + 1


def test_what_was_loaded_from_a_vit_is_saved_under_our_names(tmp_path):
    ViTForImageClassification(ViTConfig(**SMALL)).save_pretrained(tmp_path / "vit")
    model = KerformerViTForImageClassification.from_pretrained(tmp_path / "vit", attention="softmax")
    model.save_pretrained(tmp_path / "ours")
    with safe_open(tmp_path / "ours" / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(model.state_dict())


def test_only_se_k_is_new_beside_a_vit(tmp_path):
    ViTForImageClassification(ViTConfig(**SMALL)).save_pretrained(tmp_path)
    model, info = KerformerViTForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] and all(".attention.se_k." in key for key in info["missing_keys"])
    assert not info["unexpected_keys"]
    excite = model.vit.layers[0].attention.se_k.excite
    assert not excite.weight.any() and not excite.bias.any()


@pytest.mark.parametrize("size", [(32, 32), (48, 48), (40, 24)])
def test_interpolated_positions_equal_transformers(size, tmp_path):
    vit = stir(ViTForImageClassification(ViTConfig(**SMALL, num_labels=5))).eval()
    vit.save_pretrained(tmp_path)
    model = KerformerViTForImageClassification.from_pretrained(tmp_path, attention="softmax")
    pixels = torch.randn(2, 3, *size)
    expected = vit(pixels, interpolate_pos_encoding=True).logits
    torch.testing.assert_close(model(pixels, interpolate_pos_encoding=True).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["kerformer", "linformer", "mixer"])
def test_tables_follow_the_resolution(attention):
    """Interpolating on the way equals resampling the tables for good, and gradients reach the tables."""
    model = stir(KerformerViTModel(config(attention=attention))).eval()
    pixels = torch.randn(2, 3, 48, 40)
    flexible = model(pixels, interpolate_pos_encoding=True).last_hidden_state
    fixed = copy.deepcopy(model)
    for layer in fixed.layers:
        layer.attention.resample((4, 4), (6, 5))
    fixed.embeddings.grid = (6, 5)
    fixed.embeddings.position_embeddings.data = resample_positions(
        model.embeddings.position_embeddings, 1, (4, 4), (6, 5)
    )
    torch.testing.assert_close(fixed(pixels, interpolate_pos_encoding=True).last_hidden_state, flexible)
    flexible.square().mean().backward()
    own = model.layers[0].attention.own_parameters()
    assert own and all(p.grad is not None and p.grad.any() for p in own.values())


@pytest.mark.parametrize("attention", list_attentions())
def test_every_mechanism_by_name(attention):
    grid = attention in GRID_MECHANISMS
    model = KerformerViTForImageClassification(config(attention=attention, use_cls_token=not grid))
    output = model(PIXELS, labels=torch.tensor([0, 1, 2]))
    assert output.logits.shape == (3, 5)
    output.loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("attention", GRID_MECHANISMS)
def test_grids_need_models_without_cls(attention):
    with pytest.raises(ValueError, match=f"'{attention}' needs a grid .* use_cls_token=False.*fit: .*softmax"):
        config(attention=attention)


def test_without_cls_images_are_pooled_by_the_mean():
    model = KerformerViTForImageClassification(config(attention="softmax", use_cls_token=False)).eval()
    hidden = model.vit(PIXELS).last_hidden_state
    assert hidden.shape == (3, 16, 32)
    torch.testing.assert_close(model(PIXELS).logits, model.classifier(hidden.mean(1)))


@pytest.mark.parametrize("asked", ["argument", "config"])
@pytest.mark.parametrize("attention", ["kerformer", "softmax", "performer"])
def test_attentions(attention, asked):
    model = stir(KerformerViTForImageClassification(config(attention=attention)), 0.02).eval()
    plain = model(PIXELS)
    assert plain.attentions is None
    if asked == "config":
        model.config.output_attentions = True
    output = model(PIXELS, **({"output_attentions": True} if asked == "argument" else {}))
    assert [a.shape for a in output.attentions] == [(3, 2, 17, 17)] * 2
    torch.testing.assert_close(output.attentions[0].sum(-1), torch.ones(3, 2, 17), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(output.logits, plain.logits, atol=1e-4, rtol=1e-4)


def test_mechanisms_without_a_matrix_say_so():
    model = KerformerViTModel(config(attention="fnet"))
    with pytest.raises(ValueError, match="'fnet' attention does not support output_attentions"):
        model(PIXELS, output_attentions=True)


def test_convert_attention_keeps_config_and_weights(tmp_path):
    model = KerformerViTForImageClassification(config(attention="softmax")).eval()
    report = convert_attention(model, "performer", batch={"pixel_values": PIXELS}, num_features=64)
    assert len(report.layers) == 2 and model.config.attention == "performer"
    model.save_pretrained(tmp_path)
    again = KerformerViTForImageClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(again(PIXELS).logits, model(PIXELS).logits)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": 30}, "image_size=30 must be a multiple of patch_size=8"),
        ({"image_size": -32}, "image_size=-32 must be a positive size"),
        ({"num_attention_heads": 3}, "hidden_size=32 does not divide by num_attention_heads=3"),
        ({"hidden_act": "sigmund"}, "hidden_act='sigmund' is unknown"),
        ({"hidden_dropout_prob": 1.5}, r"hidden_dropout_prob=1.5 must lie in \[0, 1\)"),
        ({"patch_size": 0}, "patch_size=0 must be positive"),
        ({"hidden_size": "32"}, "hidden_size"),
    ],
)
def test_bad_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        config(**fields)


def test_a_field_set_later_is_checked_when_the_model_is_built():
    late = config()
    late.patch_size = 7
    with pytest.raises(ValueError, match="multiple of patch_size=7"):
        KerformerViTModel(late)


@pytest.mark.parametrize(
    ("shape", "interpolate", "message"),
    [
        ((1, 3, 40, 32), False, "40x32 pixels, but image_size is 32x32"),
        ((1, 3, 36, 32), True, "36x32 pixels, no multiple of patch_size=8"),
        ((1, 3, 0, 0), True, "0x0 pixels"),
        ((1, 4, 32, 32), False, r"pixel_values must be \(batch, 3, height, width\), as num_channels=3"),
    ],
)
def test_bad_images(shape, interpolate, message):
    with pytest.raises(ValueError, match=message):
        KerformerViTModel(config())(torch.zeros(shape), interpolate_pos_encoding=interpolate)


def test_bad_masks():
    model = KerformerViTForMaskedImageModeling(config())
    with pytest.raises(ValueError, match=r"bool_masked_pos must be \(batch, patches\) = \(3, 16\), got \(3, 4\)"):
        model(PIXELS, bool_masked_pos=torch.ones(3, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="use_mask_token=True"):
        KerformerViTModel(config())(PIXELS, bool_masked_pos=torch.ones(3, 16, dtype=torch.bool))


def test_it_learns_32_digits_by_heart():
    digits = load_digits()
    pixels = torch.tensor(digits.images[:32] / 8 - 1, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target[:32])
    tiny = KerformerViTConfig(**{**SMALL, "image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10})
    model = KerformerViTForImageClassification(tiny)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(200):
        loss = model(pixels, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (model.eval()(pixels).logits.argmax(-1) == labels).all()
