"""LoRA by PEFT on every family: only adapters learn, and they survive saving, merging and switching."""

import copy

import pytest
import torch
from interop_models import build, inputs, logits, text
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoModelForImageClassification

from hf_efficient.models.compressive_performer.cache import CompressiveMemory

peft = pytest.importorskip("peft", reason="pip install hf-efficient[interop]")
pytestmark = pytest.mark.filterwarnings("ignore")  # of a config that PEFT looks for on the Hub

SEPARABLE = {"attention": "separable", "attention_options": {"num_latent_tokens": 2}}
CASES = {
    "HuggingGreenViT": ("HuggingGreenViT", {}, ["q_proj", "v_proj"]),
    "HuggingGreenViT, patches": ("HuggingGreenViT", {}, ["projection"]),
    "KerformerViT": ("KerformerViT", {}, "all-linear"),
    "KerformerViT, separable": ("KerformerViT", SEPARABLE, "all-linear"),
    "MobileViTv2": ("MobileViTv2", {}, r".*(qkv_proj|out_proj|conv1|conv2)\.convolution"),
    "CompressivePerformer": ("CompressivePerformer", {}, "all-linear"),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def adapted(model, targets, name="default"):
    """With an adapter that does something, which a fresh one does not."""
    torch.manual_seed(5)
    options = peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
    return peft.get_peft_model(model, options, adapter_name=name).eval()


@cases
def test_only_adapters_learn(case):
    family, fields, targets = case
    model = adapted(build(family, **fields), targets).train()
    before = {name: x.detach().clone() for name, x in model.named_parameters()}
    model(**inputs(model, labels=True)).loss.backward()
    for name, parameter in model.named_parameters():
        learns = parameter.grad is not None and bool(parameter.grad.any())
        assert learns == parameter.requires_grad == ("lora_" in name), name
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == ("lora_" not in name), name


@cases
def test_saved_and_reloaded(case, tmp_path):
    family, fields, targets = case
    model = adapted(build(family, **fields), targets)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "adapter_model.safetensors", "pt") as file:
        assert all("lora_" in name for name in file.keys())  # noqa: SIM118 - it is no dict
    base = build(family, **fields)
    assert not torch.allclose(logits(base), logits(model), atol=1e-3)
    assert torch.equal(logits(peft.PeftModel.from_pretrained(base, tmp_path).eval()), logits(model))


@cases
def test_merged(case, tmp_path):
    family, fields, targets = case
    model = adapted(build(family, **fields), targets)
    expected = logits(model)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged), expected, atol=1e-5, rtol=1e-5)
    merged.save_pretrained(tmp_path)
    auto = AutoModelForCausalLM if family == "CompressivePerformer" else AutoModelForImageClassification
    assert torch.equal(logits(auto.from_pretrained(tmp_path).eval()), logits(merged))


def test_tables_are_no_layers():
    """SE-K's matrices are looked up, not called: an adapter around them would silently do nothing."""
    with pytest.raises(ValueError, match=r"Target module Table.*is not supported"):
        adapted(build("KerformerViT"), ["squeeze"])


def two_adapters():
    model = adapted(build("CompressivePerformer").double(), ["qkv_proj", "fc1"], "one")
    torch.manual_seed(6)
    model.add_adapter("two", peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    return model.double().eval()


def written(model, **options):
    return model.generate(input_ids=text(1, 20), max_new_tokens=30, do_sample=False, **options)


def test_generation_with_adapters():
    """With each adapter, without any and merged: with the cache as without, and each writes something of its own."""
    model, texts = two_adapters(), []
    for name in ("one", "two", "one"):
        model.set_adapter(name)
        texts.append(written(model))
        assert torch.equal(texts[-1], written(model, use_cache=False))
    with model.disable_adapter():
        base = written(model)
    assert torch.equal(texts[0], texts[2]) and not torch.equal(texts[0], texts[1])
    assert torch.equal(base, written(build("CompressivePerformer").double()))
    merged = model.merge_and_unload()
    assert torch.equal(written(merged), texts[2]) and torch.equal(written(merged, use_cache=False), texts[2])


def switch(model):
    model.set_adapter("two")


def step(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.mul_(1.5)


CHANGES = {"switched": switch, "trained": step, "disabled": lambda model: model.base_model.disable_adapter_layers()}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("length", [1, 25])
def test_memory_outlives_a_change_of_adapters(change, length):
    """Its keys and values are made anew, as if it had been saved and loaded."""
    model, ids = two_adapters(), text(2, 70 + length)
    with torch.no_grad():
        memory = model(ids[:, :70]).memory
        change(model)
        fresh = CompressiveMemory.from_state_dict(copy.deepcopy(memory.state_dict()), model.config)
        expected = model(ids[:, 70:], memory=fresh).logits
        torch.testing.assert_close(model(ids[:, 70:], memory=memory).logits, expected, atol=1e-10, rtol=1e-10)
