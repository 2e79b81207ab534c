"""What one layer remembers of a text: the open segment, recent segments as they were, older ones compressed.

    [compressed; recent; segment]    (Rae et al. 2020, "Compressive Transformers", made exact)

A text is cut into segments of T tokens. A full segment joins the recent memory. What then exceeds its L_m slots leaves
at the old end, is compressed by the factor c, and joins the compressed memory of L_c slots, whose oldest slots are
forgotten. All start empty. How much is filled follows from the number of tokens seen, so that number is all that is
counted: per row, real tokens only. Padding never enters, and rows of a batch may be at different places.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...linear.state import State
from .schedule import Piece, Schedule


class MemoryLengths(NamedTuple):
    segment: int  # T
    recent: int  # L_m
    compressed: int  # L_c
    rate: int  # c

    def open_after(self, seen: int) -> int:
        """Tokens in the open segment of a row that has seen so many."""
        return seen % self.segment

    def recent_after(self, seen: int) -> int:
        return min(seen - self.open_after(seen), self.recent)

    def compressed_after(self, seen: int) -> int:
        left = max(0, seen - self.open_after(seen) - self.recent)  # tokens that have left the recent memory
        return min(left // self.rate, self.compressed)

    def rows_alike(self, rows: list[int], seen: list[int]) -> dict[tuple[int, int], list[int]]:
        """Some rows, by how many compressed and recent slots each has filled after the tokens seen."""
        groups = {}
        for row in rows:
            filled = self.compressed_after(seen[row]), self.recent_after(seen[row])
            groups.setdefault(filled, []).append(row)
        return groups

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
    state: State | None = None  # of the attention over all of it; None: to be made of it anew
    projected: tuple[Tensor, Tensor] | None = None  # keys and values of the first two: `fast/projected_memory.py`
    made_by: tuple = ()  # the version of the weights that made state and projected

    @classmethod
    def empty(cls, like: Tensor) -> "Memory":
        """Nothing seen, for tokens (B, N, d)."""
        return cls(*(like.new_zeros(like.shape[0], 0, like.shape[2]) for _ in range(3)))

    def slots_only(self) -> "Memory":
        """Without what the present weights have made of it."""
        return self._replace(state=None, projected=None)

    def select(self, rows: Tensor | None) -> "Memory":
        """Some rows, in this order, each as often as it is named; None = all."""
        if rows is None:
            return self

        def pick(x: Tensor) -> Tensor:
            return x.index_select(0, rows.to(x.device))

        state = None if self.state is None else {name: pick(x) for name, x in self.state.items()}
        projected = None if self.projected is None else tuple(map(pick, self.projected))
        return Memory(pick(self.compressed), pick(self.recent), pick(self.segment), state, projected, self.made_by)

    def with_rows(self, rows: Tensor | None, others: "Memory") -> "Memory":
        """With the slots of some rows replaced, their segments empty; None = all."""
        if rows is None:
            return others
        compressed, recent = (put_rows(*pair) for pair in zip(self[:2], (rows, rows), others[:2], strict=True))
        return Memory(compressed, recent, self.segment)


def write_segment(buffer: Tensor, tokens: Tensor, piece: Piece, schedule: Schedule, in_place: bool) -> Tensor:
    """The buffer of open segments (B, T, d) with the piece's tokens (B, n, d) at their places."""
    if not buffer.shape[1]:
        buffer = tokens.new_zeros(tokens.shape[0], schedule.segment, tokens.shape[2])
    elif not in_place:
        buffer = buffer.clone()
    if schedule.aligned:
        start = piece.seen[0] % schedule.segment
        buffer[:, start : start + tokens.shape[1]] = tokens
        return buffer
    places = schedule.positions(tokens.device)[:, piece.columns]
    real = torch.ones_like(places, dtype=torch.bool) if piece.key_mask is None else piece.key_mask.to(tokens.device)
    rows, columns = real.nonzero(as_tuple=True)
    buffer[rows, places[rows, columns]] = tokens[rows, columns]
    return buffer


def filled_slots(counts: list[int], slots: Tensor, leftmost: bool = False) -> Tensor | None:
    """Which of the slots (B, n, d) are filled, if so many of each row are: (B, n), or None where all are."""
    if len(set(counts)) == 1:
        return None
    length = slots.shape[1]
    place, count = torch.arange(length, device=slots.device), torch.tensor(counts, device=slots.device).unsqueeze(1)
    return place < count if leftmost else place >= length - count


def move_on(recent: Tensor, segment: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """What leaves the recent slots (B, n, d), and what fills them, when a segment joins and there is so much room."""
    leaving = max(0, recent.shape[1] + segment.shape[1] - room)
    first = min(leaving, recent.shape[1])
    old = torch.cat([recent[:, :first], segment[:, : leaving - first]], 1)
    return old, torch.cat([recent[:, first:], segment[:, leaving - first :]], 1)


def last(x: Tensor, count: int) -> Tensor:
    """The last so many of (B, n, d)"""
    return x[:, x.shape[1] - count :]


def append(kept: Tensor, new: Tensor, room: int) -> Tensor:
    """The last slots of kept and then new ones (B, n, d), as many as there is room for."""
    new = last(new, min(new.shape[1], room))
    return torch.cat([last(kept, min(kept.shape[1], room - new.shape[1])), new], 1)


def put_rows(target: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """target (B, n, d) with some of its rows replaced, aligned to the right, as wide as the widest."""
    width = max(target.shape[1], values.shape[1])
    target, values = (F.pad(x, (0, 0, width - x.shape[1], 0)) for x in (target, values))
    return target.index_copy(0, rows, values)
