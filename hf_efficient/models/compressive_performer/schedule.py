"""How the tokens of a call fall into segments: nothing is attended to or remembered across the end of one at once."""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Piece(NamedTuple):
    """Columns of a call in which no row passes the end of a segment, except with its last token there."""

    columns: slice
    seen: list[int]  # tokens of each row before it
    real: list[int]  # tokens of each row in it
    key_mask: Tensor | None  # (B, n), True = real token; None = all are

    def full_rows(self, segment: int) -> list[int]:
        """The rows whose segment of so many tokens it completes."""
        counts = enumerate(zip(self.seen, self.real, strict=True))
        return [row for row, (seen, n) in counts if n and not (seen + n) % segment]


class Schedule:
    """How a call of N columns falls into pieces, the same in every layer.

    Args:
        seen: tokens of each row before the call.
        length: N.
        segment: T.
        mask: (B, N), True = real token; None = all are.

    Attributes:
        pieces, after: the pieces, and the tokens of each row after them.
        aligned: whether all rows are at the same place in their segments.
    """

    def __init__(self, seen: list[int], length: int, segment: int, mask: Tensor | None = None):
        self.segment, self.aligned = segment, mask is None and len({n % segment for n in seen}) == 1
        self.seen, self.length, self.masked_positions = seen, length, None
        if mask is None:
            ends = {end for n in set(seen) for end in range(segment - n % segment, length, segment)}
            cuts = sorted({0, length, *ends})
            counts = [[b - a] * len(seen) for a, b in pairwise(cuts)]
        else:
            mask, start = mask.cpu(), torch.tensor(seen, device="cpu").unsqueeze(1)  # (B, 1)
            count = F.pad(mask.long().cumsum(1), (1, 0))  # (B, N + 1), real tokens before each column
            full = (count.diff() > 0) & ((start + count[:, 1:]) % segment == 0)  # columns that complete a segment
            cuts = sorted({0, length, *(full.any(0).nonzero().flatten() + 1).tolist()})
            counts = count[:, cuts].diff().T.tolist()
            self.masked_positions = (start + count[:, 1:] - 1).clamp_min(0) % segment
        self.pieces = []
        for (a, b), real in zip(pairwise(cuts), counts, strict=True):
            key_mask = None if mask is None or mask[:, a:b].all() else mask[:, a:b]
            self.pieces.append(Piece(slice(a, b), seen, real, key_mask))
            seen = [before + n for before, n in zip(seen, real, strict=True)]
        self.after = seen

    def positions(self, device: torch.device) -> Tensor:
        """Where in its segment each column's token is: (N,), or (B, N) where rows differ. They are made on the device
        where that can be: to copy them would keep a GPU waiting in every layer."""
        if self.masked_positions is not None:
            return self.masked_positions.to(device)
        columns = torch.arange(self.length, device=device)
        if self.aligned:
            return (columns + self.seen[0] % self.segment) % self.segment
        return (columns + torch.tensor(self.seen, device=device).unsqueeze(1)) % self.segment
