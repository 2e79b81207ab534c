"""Images with labels, decoded."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from .image_decoding import IGNORED
from .objects import Objects


@dataclass(frozen=True)
class ImageSet:
    """
    Args:
        pixels: uint8 (N, 3, H, W); a memory-mapped file, so pages are read when they are needed.
        labels: classes, int64 (N,); `Objects`; or masks, uint8 (N, H, W), in which 255 is ignored.
        skipped: what was left out because it is corrupt, and why.
    """

    pixels: Tensor
    labels: Tensor | Objects
    class_names: list[str]
    skipped: list[str] = field(default_factory=list)

    def __post_init__(self):
        if self.pixels.dtype != torch.uint8 or self.pixels.dim() != 4:
            raise ValueError(f"pixels must be uint8 (N, C, H, W), got {self.pixels.dtype} {tuple(self.pixels.shape)}.")
        if len(self.labels) != len(self.pixels):
            raise ValueError(f"there are {len(self.labels)} labels for {len(self.pixels)} images.")
        if self.kind == "mask":
            if self.labels.shape[1:] != self.pixels.shape[2:]:
                raise ValueError(
                    f"masks are {tuple(self.labels.shape[1:])} and images {tuple(self.pixels.shape[2:])}."
                )
            return  # whose values were looked at when they were decoded
        classes = self.labels.classes if self.kind == "objects" else self.labels
        wrong = classes[(classes < 0) | (classes >= len(self.class_names))]
        if len(wrong):
            raise ValueError(f"labels contains {wrong[0].item()}, but there are only {len(self.class_names)} classes.")

    @property
    def kind(self) -> str:
        """Of the labels: label, objects or mask."""
        return "objects" if isinstance(self.labels, Objects) else "label" if self.labels.dim() == 1 else "mask"

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, C, H, W)"""
        return tuple(self.pixels.shape)

    blocks: ClassVar[None] = None  # any order of images costs the same

    def take(self, samples: Tensor) -> tuple[Tensor, Tensor | Objects]:
        """Pixels and labels of some images (B,)."""
        return self.pixels.index_select(0, samples), self.labels[samples]

    def sample(self) -> Tensor:
        """Pixels that stand for all."""
        return self.pixels

    def strata(self) -> Tensor:
        """(N,): what parts of the set are balanced by: the class, or the rarest class among the objects."""
        if self.kind == "label":
            return self.labels
        return self.labels.rarest() + 1 if self.kind == "objects" else torch.zeros(len(self), dtype=torch.int64)

    def subset(self, indices: Tensor) -> "ImageSet":
        """These images, as a copy."""
        return replace(self, pixels=self.pixels[indices], labels=self.labels[indices])

    def renumbered(self, class_names: list[str]) -> "ImageSet":
        """With these classes, among which all of its own are."""
        numbers = torch.tensor([class_names.index(name) for name in self.class_names])
        return replace(self, labels=renumber(self.labels, self.kind, numbers), class_names=class_names)


def renumber(labels: Tensor | Objects, kind: str, numbers: Tensor) -> Tensor | Objects:
    """Labels with other numbers (classes,) for their classes."""
    if kind == "objects":
        return replace(labels, classes=numbers[labels.classes])
    if kind == "mask":
        table = torch.full((256,), IGNORED, dtype=torch.uint8)
        table[: len(numbers)] = numbers.to(torch.uint8)
        return table[labels.int()]
    return numbers[labels]
