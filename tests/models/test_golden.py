"""Checkpoints that an earlier state of this project wrote still load, and still mean the same.

`python tests/models/test_golden.py <model_type>` writes one anew: only for a new family, or when a change of outputs
is meant, and then CHANGELOG.md says so.
"""

import math
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.auto import modeling_auto

import hf_efficient
from hf_efficient.models.auto import FAMILIES

GOLDEN = Path(__file__).parents[1] / "golden"
WRITTEN = sorted(folder.name for folder in GOLDEN.iterdir())
VIT = {
    "image_size": 16,
    "patch_size": 4,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "num_labels": 3,
}
MADE = {
    "kerformer_vit": ("AutoModelForImageClassification", VIT),
    "hugginggreen_vit": ("AutoModelForImageClassification", {**VIT, "top_k": 9, "select_at_eval": True}),
    "mobilevit_v2": (
        "AutoModelForImageClassification",
        {
            "image_size": 32,
            "width_multiplier": 0.02,
            "n_attn_blocks": [1, 1, 1],
            "base_attn_unit_dims": [400, 400, 400],
            "expand_ratio": 1,
            "ffn_multiplier": 1,
            "num_labels": 3,
        },
    ),
    "compressive_performer": (
        "AutoModelForCausalLM",
        {
            "vocab_size": 16,
            "hidden_size": 8,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "segment_length": 8,
            "memory_length": 8,
            "compressed_memory_length": 4,
            "compression_rate": 2,
        },
    ),
}


def batch_for(config) -> dict[str, torch.Tensor]:
    """Inputs that no random generator has to repeat."""
    if hasattr(config, "image_size"):
        shape = (2, 3, config.image_size, config.image_size)
        return {"pixel_values": torch.arange(math.prod(shape)).mul(0.37).sin().view(shape)}
    return {"input_ids": (torch.arange(42) ** 2 % config.vocab_size).view(2, 21)}


def made(family: str) -> tuple[str, dict]:
    """Its Auto class and its fields; a family with a ViT's fields needs no entry of its own."""
    return MADE.get(family, ("AutoModelForImageClassification", VIT))


def test_all_are_there():
    assert set(MADE) <= set(WRITTEN) <= set(FAMILIES)


@pytest.mark.parametrize("family", WRITTEN)
def test_it_still_loads_and_gives_the_same(family):
    auto, _ = made(family)
    model, info = getattr(modeling_auto, auto).from_pretrained(GOLDEN / family, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    expected = load_file(GOLDEN / family / "expected.safetensors")["logits"]
    with torch.no_grad():
        logits = model.eval()(**batch_for(model.config)).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    assert logits.std() > 0.01  # says something


def test_they_are_small():
    assert sum(file.stat().st_size for file in GOLDEN.rglob("*") if file.is_file()) < 100_000


def make(family: str) -> None:
    auto, fields = made(family)
    torch.manual_seed(0)
    config = getattr(hf_efficient, FAMILIES[family].config)(**fields)
    model = getattr(hf_efficient, FAMILIES[family].classes()[auto])(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    model.save_pretrained(GOLDEN / family)
    for file in (GOLDEN / family).glob("*.py"):
        file.unlink()  # it is today's code that has to load it
    with torch.no_grad():
        save_file({"logits": model(**batch_for(config)).logits}, GOLDEN / family / "expected.safetensors")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        make(name)
