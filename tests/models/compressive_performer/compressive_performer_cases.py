"""The language models under test: tiny, with every parameter moved off its initial value."""

import re
from pathlib import Path

import torch

from hf_efficient import CompressivePerformerConfig, CompressivePerformerForCausalLM
from hf_efficient.attention import list_attentions

TINY = {
    "vocab_size": 23,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "segment_length": 8,
    "memory_length": 8,
    "compressed_memory_length": 6,
    "compression_rate": 2,
}
NO_MEMORY = {"memory_length": 0, "compressed_memory_length": 0}
# The systems of the paper and its slides.
ARMS = {
    "compressive performer, conv": {},
    "compressive performer, autoencoder": {"compression": "autoencoder"},
    "compressive transformer": {"attention": "softmax"},
    "performer without memory": NO_MEMORY,
    "transformer-xl": {"attention": "softmax", "compressed_memory_length": 0},
    "gpt": {"attention": "softmax", **NO_MEMORY},
}
# Memories of other shapes: longer and shorter than a segment, none recent, several segments.
SHAPES = {
    "long memory": {"memory_length": 20, "compressed_memory_length": 5},
    "short memory": {"memory_length": 4, "compressed_memory_length": 9},
    "compressed only": {"memory_length": 0},
    "rate 4": {"compression_rate": 4},
    "mean": {"compression": "mean"},
    "max": {"compression": "max"},
}
OF_ITS_OWN = {
    "xcit": NO_MEMORY,
    "ecoformer": {"attention_options": {"hash_interval": 0}},  # one that learns is another after a training step
    "lsh": {"attention_options": {"num_buckets": 4, "chunk_size": 3}},  # so that buckets are longer than chunks
}
MECHANISMS = {
    name: {"attention": name, **OF_ITS_OWN.get(name, {})}
    for name in list_attentions()
    if CompressivePerformerConfig().misfit(name) is None or name == "xcit"
} | {
    "gaussian_mixture, several keys": {"attention": "gaussian_mixture", "attention_options": {"keys": "multi"}},
    "local, narrow": {"attention": "local", "attention_options": {"window": 5}},
    "performer with a running maximum": {"attention_options": {"epsilon": 0.0}},
}
# What makes small models learn fast. `make` moves every parameter, also those that start at zero.
RECIPE = {
    "norm": "rms",
    "hidden_act": "relu2",
    "qk_norm": True,
    "zero_init_outputs": True,
    "tie_word_embeddings": False,
}
RECIPES = {
    "recipe": RECIPE,
    "recipe, softmax": {**RECIPE, "attention": "softmax"},
    "recipe, no memory": {**RECIPE, **NO_MEMORY},
    "recipe, keys are queries": {**RECIPE, **MECHANISMS["lsh"]},
    "recipe, several keys": {**RECIPE, **MECHANISMS["gaussian_mixture, several keys"]},
}
REVERSIBLE = {
    "reversible": {"reversible": True},
    "reversible, softmax": {"attention": "softmax", "reversible": True},
    "reversible, no memory": {**NO_MEMORY, "reversible": True},
}
SMALL_TABLES = {"ngram_buckets": 50}
NGRAMS = {
    "n-grams": {**SMALL_TABLES, "ngrams": 4},
    "n-grams, transformer-xl": {**SMALL_TABLES, **ARMS["transformer-xl"], "ngrams": 10},  # more than a segment
    "n-grams, no memory": {**SMALL_TABLES, **NO_MEMORY, "ngrams": 2},
}
# All of them once: performer and softmax with memory are among the arms.
OTHERS = {name: fields for name, fields in MECHANISMS.items() if name not in ("performer", "softmax")}
EVERY = {**ARMS, **SHAPES, **OTHERS, **RECIPES, **REVERSIBLE, **NGRAMS}
CONFIGS = Path(__file__).parents[3] / "configs"
# Of each system once: the paper's, on bytes.
YAMLS = sorted(x for x in CONFIGS.glob("enwik8_*.yaml") if not re.search("_(small|hour|char|bpe|word)$", x.stem))


def make(dtype=torch.float64, seed=0, **fields):
    torch.manual_seed(seed)
    model = CompressivePerformerForCausalLM(CompressivePerformerConfig(**{**TINY, **fields})).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def text(batch, length, seed=1, vocab_size=TINY["vocab_size"]):
    return torch.randint(vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def in_calls(model, ids, cuts, name="past_key_values", mask=None):
    """The logits of a text given in several calls, and the memory after them."""
    logits, memory, start = [], None, 0
    for stop in [*cuts, ids.shape[1]]:
        known = {} if mask is None else {"attention_mask": mask[:, :stop]}
        outputs = model(ids[:, start:stop], use_cache=True, **{name: memory}, **known)
        logits.append(outputs.logits)
        memory, start = outputs.memory, stop
    return torch.cat(logits, 1), memory
