"""`attn_implementation` of our own models: another name of `config.attention`, or refused; never without effect."""

import copy

import pytest
import torch
from families import tiny_config, tiny_model
from transformers import AutoModelForCausalLM, AutoModelForImageClassification

from hf_efficient import CompressivePerformerForCausalLM, HuggingGreenViTForImageClassification
from hf_efficient.models.auto import FAMILIES

CASES = {
    "hugginggreen_vit": ("AutoModelForImageClassification", {"attention": "softmax"}),
    "kerformer_vit": ("AutoModelForImageClassification", {"attention": "performer"}),
    "kerformer_text": ("AutoModelForSequenceClassification", {"attention": "performer"}),
    "mobilevit_v2": ("AutoModelForImageClassification", {"attention": "softmax", "num_attention_heads": 2}),
    "imagesig": ("AutoModelForImageClassification", {"attention": "softmax"}),
    "compressive_performer": ("AutoModelForCausalLM", {"attention": "softmax"}),
}
families = pytest.mark.parametrize("family", CASES)


def model_with(family, **fields):
    auto, own = CASES[family]
    return tiny_model(family, auto, **{**own, **fields})


def logits(model):
    torch.manual_seed(3)
    if model.main_input_name == "input_ids":
        return model(torch.randint(0, 200, (2, 20))).logits
    return model(torch.randn(2, 3, model.config.image_size, model.config.image_size)).logits


@families
@torch.no_grad()
def test_it_switches_the_mechanism(family, tmp_path):
    model = model_with(family)
    expected = model_with(family, attention="linear_elu")
    expected.load_state_dict(model.state_dict(), strict=False)  # a projection of random features is no weight
    before, after = logits(model), logits(expected)
    assert not torch.allclose(before, after, atol=1e-6)

    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation="linear_elu")
    assert loaded.config.attention == "linear_elu" and torch.equal(logits(loaded), after)

    weights = dict(model.named_parameters())
    model.set_attn_implementation("linear_elu")
    assert model.config.attention == "linear_elu" and torch.equal(logits(model), after)
    assert all(weights[name] is p for name, p in model.named_parameters())  # an optimizer still knows them
    model.save_pretrained(tmp_path / "switched")
    assert torch.equal(logits(type(model).from_pretrained(tmp_path / "switched")), after)
    model.set_attn_implementation("eager")  # what transformers calls all of ours
    assert model.config.attention == "linear_elu"


@torch.no_grad()
def test_options_are_those_of_the_new_mechanism(tmp_path):
    model = tiny_model("hugginggreen_vit", attention="performer", attention_options={"num_features": 8})
    model.set_attn_implementation("performer")
    assert model.config.attention_options == {"num_features": 8}
    model.set_attn_implementation("linear_elu")
    assert model.config.attention_options == {}
    fresh = tiny_model("hugginggreen_vit", attention="performer")
    fresh.load_state_dict(model.state_dict(), strict=False)
    model.set_attn_implementation("performer")
    pixels = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(pixels).last_hidden_state, fresh(pixels).last_hidden_state)
    assert model.layers[0].attention.projection.abs().sum() > 0


def test_memories_of_another_mechanism_are_refused():
    model = model_with("compressive_performer", attention="softmax")
    tokens = torch.randint(0, 200, (1, 5))
    memory = model(tokens).memory
    model.set_attn_implementation("linear_elu")
    with pytest.raises(ValueError, match="memory was made with attention='softmax', the model has 'linear_elu'"):
        model(tokens, memory=memory)
    assert model.generate(tokens, max_new_tokens=3, do_sample=False).shape == (1, 8)


@pytest.mark.parametrize("name", ["sdpa", "flash_attention_2", "kerformer", "nonsense"])
def test_what_can_not_be_set_is_refused(name, tmp_path):
    model = model_with("hugginggreen_vit")
    model.save_pretrained(tmp_path)
    before = copy.deepcopy(model.config)
    message = f"attn_implementation='{name}' can't be set for HuggingGreenViTConfig: known: .*cosformer, .*softmax"
    with pytest.raises(ValueError, match=message):
        model.set_attn_implementation(name)
    with pytest.raises(ValueError, match=message):
        AutoModelForImageClassification.from_pretrained(tmp_path, attn_implementation=name)
    assert model.config.to_dict() == before.to_dict()


def test_weights_of_a_mechanism_are_not_lost():
    model = tiny_model("kerformer_vit", attention="kerformer")
    with pytest.raises(ValueError, match="it has attention='kerformer', which has weights of its own"):
        model.set_attn_implementation("softmax")
    assert model.config.attention == "kerformer"


def test_what_does_not_fit_the_family_is_refused(tmp_path):
    model = model_with("compressive_performer", attention="linear_elu")
    with pytest.raises(ValueError, match=r"attention='nystrom' .*Mechanisms that fit"):
        model.set_attn_implementation("nystrom")
    assert model.config.attention == "linear_elu" and torch.isfinite(logits(model)).all()
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Mechanisms that fit"):
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="nystrom")


def test_a_new_model_may_ask_for_it():
    config = tiny_config("hugginggreen_vit", attention="softmax", attn_implementation="linear_elu")
    assert HuggingGreenViTForImageClassification(config).config.attention == "linear_elu"
    config = tiny_config("compressive_performer", attention="softmax")
    model = CompressivePerformerForCausalLM._from_config(config, attn_implementation="performer")
    assert model.config.attention == "performer"


def test_old_options_say_how_to_be_dropped():
    with pytest.raises(ValueError, match=r"has no 'num_features' for 'linear_elu' .* --attention_options '\{\}'"):
        tiny_config("hugginggreen_vit", attention="linear_elu", attention_options={"num_features": 8})


@pytest.mark.parametrize("family", FAMILIES)
def test_only_modules_that_are_there_are_kept_in_float32(family):
    own = CASES[family][1] if family in CASES else {}
    for attention in ("performer", "lsh", "softmax"):
        try:
            model = tiny_model(family, **own | {"attention": attention})
        except ValueError:  # does not fit
            continue
        names = [name for name, _ in model.named_buffers()]
        kept = model._keep_in_fp32_modules_strict
        assert len(kept) == (attention in ("performer", "lsh"))
        assert all(any(pattern in name for name in names) for pattern in kept)
