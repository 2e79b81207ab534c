"""Which samples go into which part: by their labels alone, balanced over the classes, and always the same."""

import numpy as np
import torch
from torch import Tensor

QUARTER = 4  # of data without an evaluation split, every 4th sample of a class


def rank_in_class(labels: Tensor) -> Tensor:
    """(N,): how many of the same label come before each."""
    order = labels.argsort(stable=True)
    counts = labels.bincount()
    starts = counts.cumsum(0) - counts
    ranks = torch.empty_like(labels)
    ranks[order] = torch.arange(len(labels)) - starts[labels[order]]
    return ranks


def first_of_classes(labels: Tensor, count: int) -> Tensor:
    """The indices of `count` samples, as many of each class as can be, in their order."""
    return rank_in_class(labels).argsort(stable=True)[:count].sort().values


def quarter(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Two parts as indices: the second is a quarter of every class."""
    order = _shuffled(labels)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    held_out[order] = rank_in_class(labels[order]) % QUARTER == QUARTER - 1
    return _parts(held_out)


def part_off(labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Two parts as indices: the second has `count` samples, as many of every class as can be."""
    order = _shuffled(labels)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    held_out[order[rank_in_class(labels[order]).argsort(stable=True)[:count]]] = True
    return _parts(held_out)


def _shuffled(labels: Tensor) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))


def _parts(held_out: Tensor) -> tuple[Tensor, Tensor]:
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()
