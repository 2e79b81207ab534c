"""Options that ViTs share: stems, normalised queries and keys, outputs that start at zero, pooling."""

import pytest
import torch
from families import images, inputs, main_output, stirred, tiny_config, tiny_model
from transformers import AutoModelForImageClassification

from hf_efficient.attention import list_attentions
from hf_efficient.remote_code import flatten

VITS = ("kerformer_vit", "hugginggreen_vit")
CLASSIFIER, MASKED = "AutoModelForImageClassification", "AutoModelForMaskedImageModeling"
STEMS = ("conv", "patch_conv")
OPTIONS = [
    {"stem": "conv"},
    {"stem": "patch_conv", "stem_width": 6},
    {"qk_norm": True},
    {"zero_init_outputs": True},
    {"pooling": "mean"},
]
families = pytest.mark.parametrize("family", VITS)
options = pytest.mark.parametrize("fields", OPTIONS, ids=lambda fields: " ".join(map(str, fields.values())))
stems = pytest.mark.parametrize("stem", STEMS)


@families
@options
def test_saved_and_reloaded_is_equal(family, fields, tmp_path):
    model = stirred(family, CLASSIFIER, **fields).train()
    with torch.no_grad():
        model(**inputs(model))  # BatchNorm has seen something
    model.eval().save_pretrained(tmp_path)
    again = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert torch.equal(main_output(model(**inputs(model))), main_output(again(**inputs(model))))
    for name, x in model.state_dict().items():
        assert torch.equal(x, again.state_dict()[name]), name


@families
@options
def test_every_weight_learns(family, fields):
    model = stirred(family, CLASSIFIER, **fields).train()
    model(**inputs(model, labels=True)).loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


@families
@stems
def test_stems_take_larger_images(family, stem):
    model = stirred(family, CLASSIFIER, stem=stem)
    larger = torch.randn(2, 3, 48, 40)
    assert model(larger, interpolate_pos_encoding=True).logits.shape == (2, 5)
    with pytest.raises(ValueError, match="image_size is 32x32"):
        model(larger)


@families
@stems
def test_stems_learn_from_masked_images(family, stem):
    model = stirred(family, MASKED, stem=stem).train()
    output = model(**inputs(model))
    assert output.reconstruction.shape == (3, 3, 32, 32)
    output.loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@stems
def test_stems_and_selection(stem):
    """Scores come from pixels, and tokens keep their places."""
    model = stirred("hugginggreen_vit", "AutoModel", stem=stem, select_at_eval=True)
    plain = stirred("hugginggreen_vit", "AutoModel", select_at_eval=True)
    pixels = images(model.config)
    output = model(pixels)
    assert output.last_hidden_state.shape[1] == 10  # 9 of 16, and CLS
    assert torch.equal(output.patch_indices, plain(pixels).patch_indices)
    all_of_them = torch.arange(16).expand(3, 16)
    torch.testing.assert_close(
        model(pixels, patch_indices=all_of_them).pooler_output, model(pixels, select_patches=False).pooler_output
    )


def test_the_code_of_a_stem_goes_along():
    files = flatten("hf_efficient.models.kerformer_vit.modeling_kerformer_vit", "softmax")
    assert "layers_stem.py" in files
    assert "from .layers_patch_embedding import" in files["layers_stem.py"]
    text = flatten("hf_efficient.models.compressive_performer.modeling_compressive_performer", "softmax")
    assert "layers_stem.py" not in text  # nor does it burden language models


@families
def test_impossible_stems_are_named(family):
    with pytest.raises(ValueError, match="stem='deep' must be 'patch', 'conv' or 'patch_conv'"):
        tiny_config(family, stem="deep")
    with pytest.raises(ValueError, match=r"patch_size=12 must be 2, 4, 8, 16, ... with stem='conv'"):
        tiny_config(family, stem="conv", image_size=36, patch_size=12)
    with pytest.raises(ValueError, match="stem_width=0 must be positive"):
        tiny_config(family, stem="conv", stem_width=0)


# Normalised queries and keys.


def test_the_option_reaches_every_layer():
    model = tiny_model("kerformer_vit", qk_norm=True)
    assert all((layer.attention.q_norm.weight == 1).all() for layer in model.layers)
    routed = tiny_model("hugginggreen_vit", qk_norm=True, routing="heads")
    assert all(head.qk_norm for layer in routed.layers for head in layer.attention.heads)


@pytest.mark.parametrize("attention", list_attentions(per_head=False))
def test_mechanisms_without_queries_of_heads_do_not_fit(attention):
    with pytest.raises(ValueError, match=f"attention='{attention}' has no queries and keys of heads to normalise"):
        tiny_config("kerformer_vit", attention=attention, use_cls_token=False, qk_norm=True)


# Outputs that start at zero.


def output_weights(model) -> list[torch.Tensor]:
    return [x for name, x in model.named_parameters() if name.endswith(("o_proj.weight", "fc2.weight"))]


@families
@pytest.mark.parametrize("fields", [{}, {"attention": "separable"}, {"attention": "performer"}, {"stem": "conv"}])
def test_blocks_start_as_the_identity(family, fields):
    config = (
        tiny_config(family, zero_init_outputs=True, heuristic="none", **fields)
        if family == "hugginggreen_vit"
        else (tiny_config(family, zero_init_outputs=True, **fields))
    )
    model = AutoModelForImageClassification.from_config(config).eval()
    assert len(output_weights(model)) == 4 and not any(weight.any() for weight in output_weights(model))
    states = model(images(config), output_hidden_states=True).hidden_states
    assert all(torch.equal(states[0], later) for later in states[1:])
    assert all(
        weight.any() for weight in output_weights(AutoModelForImageClassification.from_config(tiny_config(family)))
    )


def test_heads_that_are_routed_start_at_zero_too():
    model = tiny_model("hugginggreen_vit", zero_init_outputs=True, routing="heads")
    assert len(output_weights(model)) == 6 and not any(weight.any() for weight in output_weights(model))


def test_zeros_do_not_come_over_loaded_weights(tmp_path):
    """Nor over those of a checkpoint that lacks others."""
    model = stirred("kerformer_vit", CLASSIFIER, zero_init_outputs=True)
    assert all(weight.any() for weight in output_weights(model))
    kept = {name: x for name, x in model.state_dict().items() if "layers.1.mlp.fc2" not in name}
    model.save_pretrained(tmp_path, state_dict=kept)
    again = AutoModelForImageClassification.from_pretrained(tmp_path)
    for name, x in again.state_dict().items():
        if name in kept:
            assert torch.equal(x, kept[name]), name
    assert not again.vit.layers[1].mlp.fc2.weight.any()


# Pooling.


def test_kerformer_pools_as_told():
    seen = {}
    for pooling in (None, "cls", "mean"):
        model = stirred("kerformer_vit", CLASSIFIER, pooling=pooling)
        tokens = model.vit(images(model.config)).last_hidden_state
        seen[pooling] = model.vit.pool(tokens)
        torch.testing.assert_close(model.classifier(seen[pooling]), model(images(model.config)).logits)
    assert torch.equal(seen[None], tokens[:, 0]) and torch.equal(seen["cls"], seen[None])
    assert torch.equal(seen["mean"], tokens.mean(1))
    with pytest.raises(ValueError, match="pooling='cls' needs use_cls_token=True"):
        tiny_config("kerformer_vit", pooling="cls", use_cls_token=False)
    with pytest.raises(ValueError, match="pooling='max' must be"):
        tiny_config("kerformer_vit", pooling="max")
