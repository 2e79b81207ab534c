"""`for_inference()`: a copy that is faster, and equal."""

import copy

import pytest
import torch
from mobilevit_v2_cases import stirred, tiny
from torch import nn

from hf_efficient.models.mobilevit_v2 import inference
from hf_efficient.models.mobilevit_v2.modeling_mobilevit_v2 import (
    MobileViTv2Backbone,
    MobileViTv2ForImageClassification,
    MobileViTv2ForObjectDetection,
    MobileViTv2ForSemanticSegmentation,
    MobileViTv2Model,
)

MODELS = [
    MobileViTv2Model,
    MobileViTv2ForImageClassification,
    MobileViTv2ForSemanticSegmentation,
    MobileViTv2ForObjectDetection,
    MobileViTv2Backbone,
]


def assert_equal_outputs(found, expected):
    assert type(found) is type(expected) and list(found) == list(expected)
    for name, x in expected.items():
        for a, b in zip(*((y if isinstance(y, tuple) else (y,)) for y in (found[name], x)), strict=True):
            torch.testing.assert_close(a.clamp_min(-1e3), b.clamp_min(-1e3), atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("model_class", MODELS)
@pytest.mark.parametrize("slice_images", [1, 2, 100])
def test_fused_copy_is_equal(model_class, slice_images, monkeypatch):
    monkeypatch.setattr(inference, "SLICE_BYTES", slice_images * 32 * 32 * 2 * 16 * 4)
    model = stirred(model_class(tiny()))
    if hasattr(model, "detection_head"):
        model.config.ssd_suppression = False  # which of two boxes alike is kept is a matter of rounding
    pixel_values, calls = torch.randn(3, 3, 64, 64), []
    asked = {"output_hidden_states": True, "output_attentions": True}
    fused = model.for_inference()
    stem = fused.conv_stem if hasattr(fused, "conv_stem") else fused.mobilevitv2.conv_stem
    stem.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    assert_equal_outputs(fused(pixel_values, **asked), model(pixel_values, **asked))
    assert calls == {1: [1, 1, 1], 2: [2, 1], 100: [3]}[slice_images]
    assert_equal_outputs(fused(pixel_values=pixel_values), model(pixel_values))
    for x, y in zip(fused(pixel_values, return_dict=False), model(pixel_values, return_dict=False), strict=True):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4) if isinstance(x, torch.Tensor) else None


@pytest.mark.parametrize("fields", [{"num_latent_tokens": 4}, {"attention": "softmax"}, {"hidden_act": "gelu"}])
def test_fused_copy_of_variants(fields):
    model, pixel_values = stirred(MobileViTv2ForImageClassification(tiny(**fields))), torch.randn(2, 3, 96, 64)
    assert_equal_outputs(model.for_inference()(pixel_values), model(pixel_values))


def test_the_model_is_left_alone():
    model = stirred(MobileViTv2ForImageClassification(tiny())).train()
    before = copy.deepcopy(model.state_dict())
    fused = model.for_inference()
    assert model.training and not fused.training and not model.is_fused
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    assert not any(isinstance(module, nn.BatchNorm2d | nn.Dropout) for module in fused.modules())
    shared = {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in fused.parameters()}
    assert not shared


def test_a_fused_copy_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="save the one it was made of"):
        MobileViTv2Model(tiny()).for_inference().save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_labels_are_not_sliced():
    model = stirred(MobileViTv2ForImageClassification(tiny()))
    batch = {"pixel_values": torch.randn(3, 3, 64, 64), "labels": torch.tensor([0, 1, 2])}
    torch.testing.assert_close(model.for_inference()(**batch).loss, model(**batch).loss, atol=1e-4, rtol=1e-4)


def test_wrong_images_are_named_in_the_copy_too():
    fused = MobileViTv2Model(tiny()).for_inference()
    for wrong in (None, torch.zeros(3, 64, 64), torch.zeros(1, 3, 0, 64), torch.zeros(2, 1, 64, 64)):
        with pytest.raises(ValueError, match="pixel_values"):
            fused(wrong)
