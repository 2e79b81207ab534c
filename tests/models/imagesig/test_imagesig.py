"""ImageSig: the paper's size, signatures in place of images, and faults that name their field."""

import pytest
import torch

from hf_efficient import ImageSigConfig, ImageSigForImageClassification
from hf_efficient.attention import list_attentions

TINY = {
    **{"image_size": 32, "signature_depth": 3, "two_directions": True, "stem_channels": 8, "hidden_size": 32},
    **{"num_hidden_layers": 2, "num_attention_heads": 2, "pooler_output_size": 12, "num_labels": 5},
}


def tiny(**fields) -> ImageSigForImageClassification:
    torch.manual_seed(0)
    return ImageSigForImageClassification(ImageSigConfig(**{**TINY, **fields})).eval()


def count(**fields) -> int:
    with torch.device("meta"):
        return ImageSigForImageClassification(ImageSigConfig(**fields)).num_parameters()


def test_parameters_of_the_paper():
    assert count(num_labels=2) == 37_112
    assert count(num_labels=2, image_size=32, two_directions=True) == 37_112  # as many paths
    assert count(num_labels=10, image_size=32) == 24_720


def test_operations_of_the_paper():
    """1.69 million for an image of 64 pixels, multiplications and additions counted apart."""
    from torch.utils.flop_counter import FlopCounterMode

    model = ImageSigForImageClassification(ImageSigConfig(num_labels=2)).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(signatures=torch.randn(1, 64, 120))
    assert round(counter.get_total_flops() / 1e6, 2) == 1.69


def test_signatures_stand_for_images():
    model = tiny()
    pixels = torch.randn(3, 3, 32, 32)
    signatures = model.fixed_features(pixels)
    assert signatures.shape == (3, 64, 39)
    assert torch.equal(model(signatures=signatures).logits, model(pixels).logits)
    assert model.fixed_features.name == "signatures"
    others = [{"signature_depth": 2}, {"two_directions": False}, {"image_std": 0.3}, {"rescale_levels": True}]
    found = {tiny(**fields).fixed_features.identity for fields in ({}, *others)}
    assert len(found) == 5


def test_the_layers_are_the_papers():
    """Literally: convolution, ReLU, pooling, twice, then two linear layers on all that is left."""
    model = tiny(num_hidden_layers=0)
    x = torch.randn(3, 64, 39)
    y = x.mT
    for layer in model.imagesig.convolutions:
        rows = y.unfold(2, 3, 1)  # (B, d, N − 2, 3)
        y = torch.einsum("bdnk,odk->bon", rows, layer.convolution.weight) + layer.convolution.bias[:, None]
        y = y.relu()
        y = torch.stack([y[:, :, 3 * i : 3 * i + 3].amax(-1) for i in range(y.shape[2] // 3)], -1)
    hidden = model.imagesig.pooler(y.mT.flatten(1)).relu()
    torch.testing.assert_close(model(signatures=x).logits, model.classifier(hidden), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", list_attentions(needs_grid=False))
def test_blocks_take_any_mechanism_that_needs_no_grid(attention):
    model = tiny(attention=attention)
    assert [layer.attention.name for layer in model.imagesig.layers] == [attention] * 2
    assert model(torch.randn(2, 3, 32, 32)).logits.isfinite().all()


def test_first_logits_have_a_sane_scale():
    torch.manual_seed(0)
    model = ImageSigForImageClassification(ImageSigConfig(num_labels=10)).eval()
    colours = torch.rand(8, 3, 16, 16).repeat_interleave(4, 2).repeat_interleave(4, 3)
    assert 0.02 < model((colours - 0.5) / 0.5).logits.std() < 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": 12}, "image_size=12: of 12 paths nothing is left behind two convolutions"),
        ({"signature_depth": 0}, "signature_depth=0 must be positive"),
        ({"signature_depth": 12}, "signature_depth=12 of num_channels=3 makes 797,160 numbers for each row"),
        ({"pool_size": 0}, "pool_size=0 must be positive"),
        ({"classifier_dropout_prob": 1.0}, r"classifier_dropout_prob=1.0 must lie in \[0, 1\)"),
        ({"image_std": [0.5, 0.5]}, "must have one value for each of num_channels=3"),
        ({"image_std": 0.0}, "image_std=0.0 must be positive"),
        ({"num_hidden_layers": -1}, "num_hidden_layers=-1 must be 0 or a positive integer"),
        ({"attention": "performer"}, "attention='performer' has no layer to be in: set num_hidden_layers"),
        ({"attention_options": {"bias": False}}, "attention_options={'bias': False} need num_hidden_layers"),
        ({"attention": "window", "num_hidden_layers": 1}, "attention='window' needs a grid of patches"),
        ({"patch_size": 4}, "unknown key 'patch_size'"),
    ],
)
def test_a_wrong_field_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        ImageSigConfig(**fields)


def test_wrong_inputs_are_named():
    model = tiny()
    with pytest.raises(ValueError, match="pixel_values are 16x32 pixels, but image_size is 32x32"):
        model(torch.zeros(1, 3, 16, 32))
    with pytest.raises(ValueError, match=r"signatures must be \(batch, 64, 39\), got \(2, 64, 38\)"):
        model(signatures=torch.zeros(2, 64, 38))
    with pytest.raises(ValueError, match="pixel_values is missing"):
        model()


def test_images_need_not_be_square():
    model = tiny(image_size=[32, 20])
    assert model(torch.randn(2, 3, 32, 20)).logits.shape == (2, 5)


def test_hidden_states_are_signatures_convolutions_and_blocks():
    model, pixels = tiny(), torch.randn(3, 3, 32, 32)
    config, states = model.config, model(pixels, output_hidden_states=True).hidden_states
    assert len(states) == 1 + 2 + config.num_hidden_layers
    torch.testing.assert_close(states[0], model.fixed_features(pixels))
    assert states[1].shape[-1] == config.stem_channels
    assert {tuple(x.shape) for x in states[2:]} == {(3, config.num_positions, config.hidden_size)}
    assert model.get_input_embeddings() is model.imagesig.convolutions[0]
