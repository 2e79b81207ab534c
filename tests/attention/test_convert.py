"""Swapping the attention of trained models."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaModel, ViTConfig, ViTModel
from transformers import ViTForImageClassification as ViTClassifier

from hf_efficient.attention import build_attention, convert_attention, get_attention, list_attentions

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
FITTING = [
    name
    for name in list_attentions()
    if get_attention(name).per_head and not get_attention(name).needs_grid and get_attention(name).key_dim != 0
]


def vit():
    torch.manual_seed(0)
    return ViTModel(ViTConfig(image_size=32, patch_size=8, **SIZES)).eval()


def bert():
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=3, **SIZES)).eval()


@pytest.fixture
def images():
    return torch.randn(2, 3, 32, 32)


@pytest.mark.parametrize("name", FITTING)
def test_every_fitting_mechanism_takes_over(name, images):
    model = vit()
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    report = convert_attention(model, name, batch={"pixel_values": images})
    assert [layer.layer for layer in report.layers] == ["layers.0.attention", "layers.1.attention"]
    # How far off it is, is the mechanism's affair: one that sharpens may be farther than one that returns nothing.
    assert all(0 <= layer.relative_error < math.inf and abs(layer.cosine) <= 1.0001 for layer in report.layers)
    assert torch.isfinite(model(images).last_hidden_state).all()
    for key, value in weights.items():
        here = key.replace("attention.", "attention.attention.") if ".attention." in key else key
        assert torch.equal(model.state_dict()[here], value), key
    model.train()(images).last_hidden_state.sum().backward()


@pytest.mark.parametrize("name", ["softmax", "probabilistic"])
def test_exact_mechanisms_change_nothing(name, images):
    model = vit()
    before = model(images).last_hidden_state
    report = convert_attention(model, name, batch=images)
    assert max(layer.relative_error for layer in report.layers) < 1e-5
    assert report.output_error < 1e-5
    assert_close(model(images).last_hidden_state, before, atol=1e-5, rtol=1e-5)


def test_the_error_falls_with_more_features(images):
    errors = []
    for features in (8, 64, 1024):
        model = vit()
        with torch.no_grad():
            for p in (p for name, p in model.named_parameters() if "q_proj" in name or "k_proj" in name):
                p.mul_(8)
        errors.append(convert_attention(model, "performer", batch=images, num_features=features, epsilon=0.0))
    errors = [sum(layer.relative_error for layer in report.layers) for report in errors]
    assert errors[0] > errors[1] > errors[2]


def test_bert_keeps_its_padding():
    ids, mask = torch.randint(1, 50, (2, 10)), torch.ones(2, 10, dtype=torch.long)
    mask[1, 6:] = 0
    for implementation in ("eager", "sdpa"):
        model = bert()
        model.set_attn_implementation(implementation)
        convert_attention(model, "linear_elu", batch={"input_ids": ids, "attention_mask": mask})
        padded = model(ids, attention_mask=mask).logits
        assert_close(padded[1:], model(ids[1:, :6]).logits, atol=1e-5, rtol=1e-5)


def test_exact_conversion_of_bert():
    model, ids = bert(), torch.randint(1, 50, (2, 10))
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, 6:] = 0
    before = model(ids, attention_mask=mask).logits
    report = convert_attention(model, "softmax", batch={"input_ids": ids, "attention_mask": mask})
    assert report.output_error < 1e-5
    assert_close(model(ids, attention_mask=mask).logits, before, atol=1e-5, rtol=1e-5)


def test_our_own_modules_are_converted_in_place():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = build_attention("softmax", 32, 4, causal=True)

        def forward(self, x):
            return self.attention(x)

    model = nn.Sequential(Block())
    projection = model[0].attention.q_proj
    report = convert_attention(model, "linear_elu", batch=torch.randn(1, 6, 32))
    assert model[0].attention.name == "linear_elu"
    assert model[0].attention.causal
    assert model[0].attention.q_proj is projection
    assert report.layers[0].relative_error > 0


def test_tables_get_the_models_length(images):
    model = vit()
    convert_attention(model, "kerformer")
    assert model.layers[0].attention.attention.se_k.max_length == 17
    assert torch.isfinite(model(images).last_hidden_state).all()


def test_without_a_batch_there_are_no_errors_to_show():
    report = convert_attention(vit(), "efficient")
    assert report.output_error is None
    assert "layers.1.attention" in str(report)


def test_training_mode_and_dtype_are_kept():
    model = ViTClassifier(ViTConfig(image_size=32, patch_size=8, **SIZES)).to(torch.bfloat16).train()
    convert_attention(model, "xcit", batch=torch.randn(1, 3, 32, 32, dtype=torch.bfloat16))
    assert all(module.training for module in model.modules())
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_what_does_not_fit_is_refused():
    for name in set(list_attentions()) - set(FITTING):
        with pytest.raises(ValueError, match=f"'{name}' attention can't take over.*Mechanisms that can: .*performer"):
            convert_attention(vit(), name)
    with pytest.raises(ValueError, match="unknown attention 'softmaxx'"):
        convert_attention(vit(), "softmaxx")
    with pytest.raises(ValueError, match="Linear has no attention that can be converted"):
        convert_attention(nn.Linear(2, 2), "softmax")
    with pytest.raises(ValueError, match="rotary positions"):
        convert_attention(LlamaModel(LlamaConfig(vocab_size=50, **SIZES)), "linear_elu")
    with pytest.raises(ValueError, match="k projection"):
        convert_attention(vit(), "gaussian_mixture", keys="multi")
