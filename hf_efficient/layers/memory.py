"""A memory of what a layer has seen: the open segment, recent segments as they were, older ones compressed.

    [compressed; recent; segment]    (Rae et al. 2020, "Compressive Transformers", made exact)

A text is cut into segments of T tokens. When a segment is full, it joins the recent memory M; what then exceeds L_m
slots leaves at the old end, is compressed by the factor c, and joins the compressed memory C of L_c slots, whose
oldest slots are forgotten. All start empty. How much of them is filled follows from the number of tokens seen alone,
so that number is all that is counted: per row, real tokens only. Padding therefore never enters, and rows of a batch
may be at different places in their segments.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..linear.state import State


class MemoryLengths(NamedTuple):
    segment: int  # T
    recent: int  # L_m
    compressed: int  # L_c
    rate: int  # c

    @property
    def total(self) -> int:
        """The most keys that a query can see."""
        return self.compressed + self.recent + self.segment

    @property
    def reach(self) -> int:
        """The tokens before a segment that its memory is made of."""
        return self.recent + self.rate * self.compressed

    def open_after(self, seen: int) -> int:
        """Tokens in the open segment of a row that has seen so many."""
        return seen % self.segment

    def recent_after(self, seen: int) -> int:
        return min(seen - self.open_after(seen), self.recent)

    def compressed_after(self, seen: int) -> int:
        left = max(0, seen - self.open_after(seen) - self.recent)  # tokens that have left the recent memory
        return min(left // self.rate, self.compressed)

    def positions(self) -> Tensor:
        """Of [compressed; recent; segment], from the segment's start on; a compressed slot is at its centre."""
        exact = {"dtype": torch.float64, "device": "cpu"}  # models are built on meta
        compressed = torch.arange(-self.compressed, 0, **exact) * self.rate + (self.rate - 1) / 2
        rest = torch.arange(-self.recent, self.segment, **exact)
        return torch.cat([compressed - self.recent, rest])


class Memory(NamedTuple):
    """What one layer remembers of each of B rows; slots are aligned to the right, those of the segment to the left."""

    compressed: Tensor  # (B, up to L_c, d)
    recent: Tensor  # (B, up to L_m, d)
    segment: Tensor  # (B, T, d), or (B, 0, d) before it is needed
    state: State | None = None  # of the attention over all of it; None where it has to be made anew
    projected: tuple[Tensor, Tensor] | None = None  # keys and values of compressed and recent slots; None likewise

    @classmethod
    def empty(cls, like: Tensor) -> "Memory":
        """Nothing seen, for tokens (B, N, d)."""
        return cls(*(like.new_zeros(like.shape[0], 0, like.shape[2]) for _ in range(3)))

    def map(self, change) -> "Memory":
        """With `change` applied to every tensor."""
        state = None if self.state is None else {name: change(x) for name, x in self.state.items()}
        projected = None if self.projected is None else tuple(map(change, self.projected))
        return Memory(change(self.compressed), change(self.recent), change(self.segment), state, projected)

    def select(self, rows: Tensor) -> "Memory":
        return self.map(lambda x: x.index_select(0, rows.to(x.device)))


class Piece(NamedTuple):
    """Columns of a call in which no row passes the end of a segment, except with its last token there."""

    columns: slice
    seen: list[int]  # tokens of each row before it
    real: list[int]  # tokens of each row in it
    key_mask: Tensor | None  # (B, n), True = real token; None = all are

    def full(self, segment: int) -> list[int]:
        """Rows whose segment it completes."""
        return [
            row
            for row, (seen, n) in enumerate(zip(self.seen, self.real, strict=True))
            if n and not (seen + n) % segment
        ]


class Schedule:
    """How a call of N columns falls into pieces, the same in every layer.

    Args:
        seen: tokens of each row before the call.
        length: N.
        segment: T.
        mask: (B, N), True = real token; None = all are.

    Attributes:
        pieces, after: the pieces, and the tokens of each row after them.
        positions: where in its segment each column's token is: a slice, or (N,), or (B, N) where rows differ.
        aligned: whether all rows are at the same place in their segments.
        is_step: whether it is one real token of each row, after which all segments are still open.
    """

    def __init__(self, seen: list[int], length: int, segment: int, mask: Tensor | None = None):
        self.seen, self.segment = seen, segment
        self.aligned = mask is None and len({n % segment for n in seen}) == 1
        if mask is None:
            cuts = self.cuts(length)
            counts = [[stop - start] * len(seen) for start, stop in pairwise(cuts)]
        else:
            order = mask.cpu().long().cumsum(1) + torch.tensor(seen)[:, None]  # (B, N)
            ends = mask.cpu() & (order % segment == 0)
            cuts = sorted({0, length, *(ends.any(0).nonzero().flatten() + 1).tolist()})
            before = F.pad(order - torch.tensor(seen)[:, None], (1, 0))[:, cuts]
            counts = before.diff(dim=1).T.tolist()
        self.pieces = []
        for (start, stop), real in zip(pairwise(cuts), counts, strict=True):
            part = None if mask is None or mask[:, start:stop].all() else mask[:, start:stop]
            self.pieces.append(Piece(slice(start, stop), seen, real, part))
            seen = [before + n for before, n in zip(seen, real, strict=True)]
        self.after = seen
        self.is_step = length == 1 and mask is None and not self.pieces[0].full(segment)
        self.positions = self.column_positions(length, mask)

    def apart(self) -> list["Schedule"]:
        """A schedule for each piece, as if it were a call of its own; for aligned rows."""
        return [Schedule(piece.seen, piece.real[0], self.segment) for piece in self.pieces]

    def depths(self, layers: int, reach: int, wanted: int) -> list[int]:
        """How many of so many layers each piece has to pass, if the last columns' outputs and what is remembered after
        them are all that is wanted: no layer looks back further than `reach` from where a segment begins."""
        depths, first = [0] * len(self.pieces), self.pieces[-1].columns.stop - wanted
        for depth in range(layers, 0, -1):
            needed = [i for i, piece in enumerate(self.pieces) if piece.columns.stop > first]
            for i in needed:
                depths[i] = max(depths[i], depth)
            first = self.pieces[needed[0]].columns.start - reach
        return depths

    def cuts(self, length: int) -> list[int]:
        cuts = {0, length}
        for offset in {n % self.segment for n in self.seen}:
            cuts.update(range(self.segment - offset, length, self.segment))
        return sorted(cuts)

    def column_positions(self, length: int, mask: Tensor | None) -> slice | Tensor:
        start = self.seen[0] % self.segment
        if self.aligned:
            if start + length <= self.segment:
                return slice(start, start + length)
            return torch.arange(start, start + length) % self.segment
        if mask is None:
            order = torch.arange(length).expand(len(self.seen), length)
        else:
            order = (mask.cpu().long().cumsum(1) - 1).clamp_min(0)
        return (order + torch.tensor(self.seen)[:, None]) % self.segment


def write_segment(buffer: Tensor, tokens: Tensor, piece: Piece, schedule: Schedule, in_place: bool) -> Tensor:
    """The buffer of open segments (B, T, d) with the piece's tokens (B, n, d) at their places."""
    if not buffer.shape[1]:
        buffer = tokens.new_zeros(tokens.shape[0], schedule.segment, tokens.shape[2])
    elif not in_place:
        buffer = buffer.clone()
    if schedule.aligned:
        start = piece.seen[0] % schedule.segment
        buffer.narrow(1, start, tokens.shape[1]).copy_(tokens)
        return buffer
    places = schedule.positions[:, piece.columns].to(tokens.device)
    real = torch.ones_like(places, dtype=torch.bool) if piece.key_mask is None else piece.key_mask
    rows, columns = real.nonzero(as_tuple=True)
    buffer[rows, places[rows, columns]] = tokens[rows, columns]
    return buffer


def remember(
    compressed: Tensor, recent: Tensor, segment: Tensor, lengths: MemoryLengths, compress
) -> tuple[Tensor, ...]:
    """A full segment (B, T, d) joins: the new compressed and recent memory, what left, and what that became.

    All slots given are filled. `compress` (B, n, d) -> (B, n/c, d) may be differentiable; memory is not.
    """
    old, recent = move_on(recent, segment, lengths.recent)
    if not (old.shape[1] and lengths.compressed):
        return compressed, recent, None, None
    new = compress(old)
    return last_of(compressed, new.detach(), lengths.compressed), recent, old, new


def move_on(recent: Tensor, segment: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """What leaves the recent slots (B, n, d), and what fills them, when a segment joins and there is so much room."""
    leaving = max(0, recent.shape[1] + segment.shape[1] - room)
    from_recent = min(leaving, recent.shape[1])
    rest = leaving - from_recent
    return join(recent[:, :from_recent], segment[:, :rest]), join(recent[:, from_recent:], segment[:, rest:])


def last(x: Tensor, count: int) -> Tensor:
    """The last so many of (B, n, d)"""
    return x[:, x.shape[1] - count :]


def last_of(kept: Tensor, new: Tensor, room: int) -> Tensor:
    """The last slots of kept and then new ones (B, n, d), as many as there is room for."""
    new = last(new, min(new.shape[1], room))
    return join(last(kept, min(kept.shape[1], room - new.shape[1])), new)


def join(*parts: Tensor) -> Tensor:
    """(B, n, d) one after the other, without a copy where all but one are empty."""
    filled = [part for part in parts if part.shape[1]]
    return torch.cat(filled, 1) if len(filled) > 1 else (filled or parts)[0]


def put_rows(target: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """target (B, n, d) with some of its rows replaced, aligned to the right, as wide as the widest."""
    width = max(target.shape[1], values.shape[1])
    target = F.pad(target, (0, 0, width - target.shape[1], 0)) if target.shape[1] < width else target
    return target.index_copy(0, rows, F.pad(values, (0, 0, width - values.shape[1], 0)))


def own_storage(x: Tensor) -> Tensor:
    """x, copied if it is a view of something larger that it would keep alive."""
    return x.clone() if x.untyped_storage().nbytes() > x.numel() * x.element_size() else x
