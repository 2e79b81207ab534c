"""Objects in images, any number in each: boxes with their classes."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Objects:
    """The objects of N images, as flat tensors.

    Args:
        offsets: int64 (N + 1,): image i has the objects from offsets[i] to offsets[i + 1].
        classes: int64 (M,)
        boxes: float32 (M, 4): cx, cy, w, h as shares of the image.
        sizes: int64 (N, 2): height and width of each image in its file, in pixels.
    """

    offsets: Tensor
    classes: Tensor
    boxes: Tensor
    sizes: Tensor

    def __post_init__(self):
        count = int(self.offsets[-1])
        if len(self.classes) != count or self.boxes.shape != (count, 4):
            raise ValueError(
                f"there are {len(self.classes)} classes and boxes {tuple(self.boxes.shape)} for {count} objects."
            )

    @classmethod
    def one_each(cls, classes: Tensor, boxes: Tensor, size: tuple[int, int]) -> "Objects":
        """One object in each image: classes (N,), boxes (N, 4), images of one size."""
        return cls(torch.arange(len(classes) + 1), classes, boxes, torch.tensor(size).expand(len(classes), 2))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def counts(self) -> Tensor:
        """(N,)"""
        return self.offsets.diff()

    @cached_property
    def owners(self) -> Tensor:
        """(M,): the image that each object is in"""
        return torch.arange(len(self)).repeat_interleave(self.counts)

    def __getitem__(self, images: Tensor) -> "Objects":
        """Those of some images (n,), which may come twice."""
        counts = self.counts[images]
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        places = torch.arange(int(offsets[-1])) + (self.offsets[images] - offsets[:-1]).repeat_interleave(counts)
        return Objects(offsets, self.classes[places], self.boxes[places], self.sizes[images])

    def moved(self, boxes: Tensor) -> "Objects":
        """With other boxes (M, 4); objects whose box has no width or height are gone."""
        seen = (boxes[:, 2] > 0) & (boxes[:, 3] > 0)
        counts = self.owners[seen].bincount(minlength=len(self))
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return replace(self, offsets=offsets, classes=self.classes[seen], boxes=boxes[seen])

    def rarest(self) -> Tensor:
        """(N,): of each image's classes the one with the fewest objects; -1 where there is nothing."""
        order = self.classes.bincount().argsort(stable=True)  # the rarest class first
        if not len(order):
            return torch.full((len(self),), -1)
        ranks = torch.empty_like(order)
        ranks[order] = torch.arange(len(order))
        best = torch.full((len(self),), len(order)).scatter_reduce(0, self.owners, ranks[self.classes], "amin")
        return torch.cat([order, order.new_full((1,), -1)])[best]

    def as_labels(self) -> list[dict[str, Tensor]]:
        """One dict per image, as detectors of transformers take them."""
        parts = (x.split(self.counts.tolist()) for x in (self.classes, self.boxes))
        names = ("class_labels", "boxes", "orig_size")
        return [dict(zip(names, image, strict=True)) for image in zip(*parts, self.sizes, strict=True)]
