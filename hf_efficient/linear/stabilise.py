"""Features given as logarithms, kept in the range of float32.

A stabilised map gives a = log₂ φ up to a floor ε. A running maximum c per feature of the keys keeps them in range,

    φ_k·2^{−c} = 2^{a_k − c} + ε 2^{−c},    φ_q·2^{c − t} = 2^{a_q + c − t} + ε 2^{c − t}

and their product is φ_q·φ_k·2^{−t}, where t, the query's own maximum, cancels in a ratio. S is kept as S·2^{−c} along
with c. As both cancel exactly, neither is differentiated, and no future key moves a past row. Maps whose logarithms
are bounded need no c: None.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .features import NO_KEY, FeatureMap
from .state import State

# Two exponents may differ by this much within a chunk before e^{difference} leaves float32's range.
SAFE_RANGE = 60.0


class Stabilised(NamedTuple):
    phi: Tensor
    rising: Tensor  # the part of φ that a moves: dφ/da over ln 2
    floor: Tensor | float  # what φ has above that


def stabilise_keys(a: Tensor, c: Tensor | None, floor: float, out: Tensor | None = None) -> Stabilised:
    """a = log₂ φ_k (.., L, F), which is overwritten, and the maximum c (.., 1, F) with these keys in it. Where there
    is a floor, φ is written to `out`, which may be a itself."""
    rising = (a if c is None else a.sub_(c)).exp2_()
    if not floor:
        return Stabilised(rising, rising, 0.0)
    constant = floor if c is None else torch.exp2(math.log2(floor) - c)
    return Stabilised(torch.add(rising, constant, out=out), rising, constant)


def stabilise_queries(
    a: Tensor, c: Tensor | None, floor: float, normalise: bool, out: Tensor | None = None
) -> Stabilised:
    """a = log₂ φ_q (.., L, F), which is overwritten, to go with keys relative to c. Its floor is a column, to be
    multiplied by 2^{c − max c} where there is a c."""
    highest = top = a.new_zeros(())
    if c is not None:
        a.add_(c)
        highest = c.amax(-1, keepdim=True)
    if normalise:
        top = a.detach().amax(-1, keepdim=True)
        if floor:
            top = torch.maximum(top, highest + math.log2(floor))
        a.sub_(top)
    rising = a.exp2_()
    if not floor:
        return Stabilised(rising, rising, 0.0)
    column = torch.exp2(highest + math.log2(floor) - top)  # ε 2^{c − t}, as the product of a column and a row
    if c is None:
        return Stabilised(torch.add(rising, column, out=out), rising, column)
    return Stabilised(torch.addcmul(rising, column, torch.exp2(c - highest), out=out), rising, column)


def safe_chunk_size(logits: Tensor, before: Tensor, chunk_size: int) -> int:
    """The largest chunk in which no running maximum rises by more than SAFE_RANGE; a chunk of one token is exact.
    Natural logarithms: logits (B, H, N, F), `before` (B, H, F)."""
    if torch.compiler.is_exporting() or logits.is_meta:  # a graph can't ask; whoever exports compares
        return min(chunk_size, logits.shape[2])
    top = torch.maximum(logits.detach().cummax(2).values, before.detach().unsqueeze(2))
    chunk_size = min(chunk_size, logits.shape[2])
    while chunk_size > 1:
        padded = F.pad(top, (0, 0, 0, -top.shape[2] % chunk_size), value=NO_KEY)
        chunks = padded.unflatten(2, (-1, chunk_size))
        lowest = chunks.masked_fill(chunks < NO_KEY / 2, torch.inf).amin(3)
        if (chunks.amax(3) - lowest).max() <= SAFE_RANGE:
            return chunk_size
        chunk_size //= 2
    return 1


@torch.no_grad()
def exact_chunk_size(k: Tensor, feature_map: FeatureMap, state: State | None, chunk_size: int | None) -> int | None:
    """How many keys (B, H, N, D) causal attention may take at a time: `chunk_size`, or fewer where the features'
    range asks for it. A floor bounds how far features can differ."""
    if not feature_map.stabilised or feature_map.floor:
        return chunk_size
    logits = feature_map(k.to(torch.promote_types(k.dtype, torch.float32))) * math.log(2)
    before = torch.full_like(logits[:, :, 0], NO_KEY) if state is None else state["c"] * math.log(2)
    return safe_chunk_size(logits, before, chunk_size or 256)
