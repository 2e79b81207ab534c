"""Checks of what a call is given: padding and memory that fit the model and one another."""

from torch import Tensor
from transformers.cache_utils import Cache

from ...attention.base import check_tensor
from ...linear.autocast import autocasts

# What a memory's contents depend on, beside the weights.
MEMORY_FIELDS = (
    *("hidden_size", "num_attention_heads", "attention", "attention_options", "segment_length", "memory_length"),
    *("compressed_memory_length", "compression_rate", "compression", "ngrams"),
)


def real_tokens(attention_mask: Tensor | None, batch: int, length: int) -> Tensor | None:
    """(B, N) bool of a call's columns; None if all are real."""
    if attention_mask is None:
        return None
    check_tensor("attention_mask", attention_mask)
    if attention_mask.dim() != 2 or attention_mask.shape[0] != batch or attention_mask.shape[1] < length:
        raise ValueError(
            f"attention_mask must be ({batch}, {length}) or reach further back, got {tuple(attention_mask.shape)}."
        )
    mask = attention_mask[:, attention_mask.shape[1] - length :].bool()
    return None if mask.all() else mask


def check_memory(name: str, given: Cache, made_for: dict, num_layers: int, hidden_states: Tensor) -> None:
    """Raises if a memory is not one of this model, for these hidden states (B, N, d).

    Args:
        name: of the argument.
        made_for: the model's `MEMORY_FIELDS`.
    """
    layers = getattr(given, "layers", [])
    if not all(hasattr(layer, "made_for") for layer in layers):
        raise ValueError(
            f"{name} is no memory of a CompressivePerformer: pass what a call returned as `memory` or "
            "`past_key_values`, or DynamicCache(config=model.config)."
        )
    if len(layers) != num_layers:
        raise ValueError(f"{name} has {len(layers)} layers, not num_hidden_layers={num_layers}.")
    first = layers[0]
    if first.memory is None:
        return
    for field, value in first.made_for.items() if first.made_for is not made_for else ():
        if value != made_for[field]:
            raise ValueError(f"{name} was made with {field}={value!r}, the model has {made_for[field]!r}.")
    check_rows(name, len(first.seen), hidden_states.shape[0])
    kept, width, dtype = first.memory.segment, hidden_states.shape[2], hidden_states.dtype
    if kept.shape[2] != width:
        raise ValueError(f"{name} is {kept.shape[2]} wide, but the model has hidden_size={width}.")
    if kept.dtype != dtype and not autocasts(hidden_states):
        raise ValueError(f"{name} holds {kept.dtype}, but the model computes in {dtype}.")


def check_rows(name: str, rows: int, batch: int) -> None:
    if rows != batch:
        raise ValueError(f"{name} is of batch size {rows}, but input_ids has {batch} rows.")
