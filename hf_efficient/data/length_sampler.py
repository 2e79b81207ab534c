"""Batches of texts of like length, so that little is padded."""

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

POOL = 50  # batches whose texts are sorted together: the more, the more alike, and the less random, a batch is


class LengthSampler(Sampler[int]):
    """All indices in an order in which each `batch`, one after the other, are texts of like length.

    Texts are shuffled, sorted by length in pools of 50 batches, and cut into batches, which are shuffled again. The
    order is a function of (seed, epoch) alone.

    Args:
        lengths: (N,)
        batch: of all processes together.
        whole_batches: leave out, in each epoch, the texts that don't fill a batch.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int = 0, whole_batches: bool = True):
        self.lengths, self.batch, self.seed, self.epoch = np.asarray(lengths), batch, seed, 0
        whole = len(self.lengths) // batch * batch
        self.drawn = whole if whole_batches and whole else len(self.lengths)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.drawn

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self.seed, self.epoch])
        order = random.permutation(len(self.lengths))[: self.drawn]
        pool = POOL * self.batch
        pools = (order[start : start + pool] for start in range(0, len(order), pool))
        order = np.concatenate([part[np.argsort(-self.lengths[part], kind="stable")] for part in pools])
        whole = len(order) // self.batch * self.batch
        batches = order[:whole].reshape(-1, self.batch)
        yield from random.permutation(batches).ravel().tolist()
        yield from order[whole:].tolist()
