"""Batches with the same number of images of each class, for contrastive training."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor
from torch.utils.data import Sampler


class BalancedSampler(Sampler[int]):
    """Indices in an order in which each P·K, one after the other, are K images of each of P classes.

    A loader of batch size P·K (on each process) makes such batches of them. The order is a function of (seed, epoch)
    alone. A class's images come in random order and not twice, until fewer than K are left.

    Args:
        labels: (N,)
        classes_per_batch: P
        images_per_class: K
    """

    def __init__(self, labels: Tensor, classes_per_batch: int, images_per_class: int, seed: int = 0):
        labels = labels.numpy()
        self.groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        smallest = min(map(len, self.groups))
        if not 2 <= classes_per_batch <= len(self.groups):
            raise ValueError(
                f"classes_per_batch={classes_per_batch} must be between 2 and {len(self.groups)}, the number of "
                "classes: with one class in a batch there are no negatives."
            )
        if not 2 <= images_per_class <= smallest:
            raise ValueError(
                f"images_per_class={images_per_class} must be between 2 and {smallest}, the images of the "
                "smallest class: with one image of a class there are no positives."
            )
        self.classes_per_batch, self.images_per_class = classes_per_batch, images_per_class
        self.batches = max(1, len(labels) // (classes_per_batch * images_per_class))
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.batches * self.classes_per_batch * self.images_per_class

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self.seed, self.epoch])
        waiting = [random.permutation(group) for group in self.groups]
        for _ in range(self.batches):
            for label in random.choice(len(self.groups), self.classes_per_batch, replace=False):
                if len(waiting[label]) < self.images_per_class:
                    waiting[label] = random.permutation(self.groups[label])
                yield from waiting[label][: self.images_per_class].tolist()
                waiting[label] = waiting[label][self.images_per_class :]
