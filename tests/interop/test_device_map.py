"""`device_map`: the same logits wherever the weights are, on disk too, and no block is torn apart."""

import pytest
import torch
from interop_models import FAMILIES, VISION, build, logits, text
from transformers import AutoModelForCausalLM, AutoModelForImageClassification
from transformers.modeling_layers import GradientCheckpointingLayer

accelerate = pytest.importorskip("accelerate", reason="pip install hf-efficient[train]")
families = pytest.mark.parametrize("family", FAMILIES)


def saved(family, folder, **fields):
    model = build(family, **fields)
    model.save_pretrained(folder / "model")
    return model


def load(family, folder, **options):
    auto = AutoModelForImageClassification if family in VISION else AutoModelForCausalLM
    return auto.from_pretrained(folder / "model", offload_folder=folder / "offload", **options).eval()


def on_disk(model) -> int:
    return sum(parameter.is_meta for parameter in model.parameters())


def assert_same(model, other):
    torch.testing.assert_close(logits(other), logits(model), atol=1e-6, rtol=1e-6)
    if model.can_generate():
        texts = [m.generate(text(1, 20), max_new_tokens=20, do_sample=False) for m in (model, other)]
        assert torch.equal(*texts)


@families
@pytest.mark.parametrize("device_map", [{"": "cpu"}, "cpu", "auto"], ids=["dict", "cpu", "auto"])
def test_in_memory(family, device_map, tmp_path):
    model = saved(family, tmp_path)
    other = load(family, tmp_path, device_map=device_map)
    assert not on_disk(other)
    assert_same(model, other)


@families
def test_too_large_for_memory(family, tmp_path):
    """What does not fit goes to disk, block by block, and is read when its turn comes."""
    model = saved(family, tmp_path)
    size = sum(x.numel() * x.element_size() for x in model.parameters())
    other = load(family, tmp_path, device_map="auto", max_memory={"cpu": size * 95 // 100})
    assert 0 < on_disk(other) < len(list(other.parameters()))
    assert_same(model, other)


@families
def test_all_on_disk(family, tmp_path):
    model = saved(family, tmp_path)
    device_map = dict.fromkeys((name for name, _ in model.named_children()), "disk")
    other = load(family, tmp_path, device_map=device_map)
    assert on_disk(other) == len(list(other.parameters()))
    assert_same(model, other)


@families
def test_blocks_stay_whole(family):
    """Classes that may not be split are there, blocks are among them, and whatever the room, no device gets only a
    part of one."""
    model = build(family)
    whole = [name for name, module in model.named_modules() if type(module).__name__ in model._no_split_modules]
    blocks = {name for name, module in model.named_modules() if isinstance(module, GradientCheckpointingLayer)}
    assert blocks and blocks <= set(whole)
    classes = {type(model.get_submodule(name)).__name__ for name in whole}
    assert classes == set(model._no_split_modules) - ({"MobileViTv1Stage"} if family == "MobileViTv2" else set())
    size = sum(x.numel() * x.element_size() for x in model.parameters())
    for share in range(1, 8):
        room = {0: size * share // 8, "cpu": size // 3, "disk": 10 * size}
        device_map = accelerate.infer_auto_device_map(model, room, no_split_module_classes=model._no_split_modules)
        assert not [key for key in device_map for name in whole if key.startswith(f"{name}.")]
