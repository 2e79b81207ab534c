"""Prompts without gradients, segment by segment through all layers, and only as deep as somebody looks back.

A segment's activations stay in cache, and memory does not grow with the text. If only the last tokens' outputs are
wanted, most tokens matter as memory alone, and no layer looks back further than its memory reaches: tokens far from
the end pass the lower layers only. A prompt of 8,192 tokens is read 1.38 times as fast, of which the depth is 1.23.
"""

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ..memory import Memory, MemoryLengths
from ..schedule import Schedule
from .switch import is_on


def can_read(schedule: Schedule) -> bool:
    return is_on() and schedule.aligned


def read(model: nn.Module, hidden_states: Tensor, cache: Cache, schedule: Schedule, last_tokens: int | None) -> Tensor:
    """`model.run` for rows at the same place in their segments; at least the last tokens' outputs."""
    parts, layers = [], len(model.layers)
    depths = needed_depths(schedule, model.lengths, layers, last_tokens or hidden_states.shape[1])
    for piece, depth in zip(schedule.pieces, depths, strict=True):
        own = Schedule(piece.seen, piece.real[0], schedule.segment)  # as if it were a call of its own
        output = hidden_states[:, piece.columns]
        for i, (layer, kept) in enumerate(zip(model.layers, cache.layers, strict=True)):
            if i < depth:
                output, _ = model.run_layer(layer, output, kept, own)
            else:
                kept.store(remember_only(layer, output, kept.memory, own), own.after, output.shape[1], model.made_for)
        parts += [output] if depth == layers else []
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def needed_depths(schedule: Schedule, lengths: MemoryLengths, layers: int, wanted: int) -> list[int]:
    """How many of so many layers each piece has to pass, if the last columns' outputs, and what is remembered after
    them, are all that is wanted."""
    reach = lengths.recent + lengths.rate * lengths.compressed  # tokens before a segment that its memory is made of
    depths, first = [0] * len(schedule.pieces), schedule.pieces[-1].columns.stop - wanted
    for depth in range(layers, 0, -1):
        needed = [i for i, piece in enumerate(schedule.pieces) if piece.columns.stop > first]
        for i in needed:
            depths[i] = max(depths[i], depth)
        first = schedule.pieces[needed[0]].columns.start - reach
    return depths


def remember_only(layer: nn.Module, hidden_states: Tensor, memory: Memory | None, schedule: Schedule) -> Memory:
    """The memory after tokens (B, N, d) that end a segment, whose outputs nobody asks for.

    They lack a layer or more: what is remembered of them is forgotten before anybody looks.
    """
    (piece,), normed = schedule.pieces, layer.layernorm_before(hidden_states[..., -layer.hidden_size :])
    before = Memory.empty(normed) if memory is None else memory.slots_only()
    return layer.memory_attention.remember(before, normed, normed, piece, schedule)[0]
