"""Images that are decoded when a batch asks for them: no decoded copy is stored, and memory does not grow with them.

A row that can't be read, with `skip_corrupt`, is replaced by the next that can, so that batches stay full and are the
same however often and wherever training was resumed.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from .decoded_images import renumber
from .image_decoding import CorruptRow, Decoded, Reading, attempt, number_of
from .image_rows import Blocks, RowReader
from .objects import Objects

SAMPLED, SAMPLED_BLOCKS = 256, 8  # images that stand for all


@dataclass(frozen=True)
class ImagesOnDemand:
    """What an `ImageSet` is, without the pixels.

    Args:
        reading: all images are made of its `size`.
        skip_corrupt: replace what can't be read; otherwise the first is an error.
        rows: int64 (N,), ascending: those of the split that are used.
        numbers: int64 (classes,): classes as the data have them -> as `class_names` have them.
        met: uint8 (rows of the split,): 1 where something was left out; shared by the processes of a loader.
    """

    reader: RowReader
    reading: Reading
    class_names: list[str]
    skip_corrupt: bool = False
    rows: Tensor = None
    numbers: Tensor | None = None
    met: Tensor = field(default=None, repr=False)

    def __post_init__(self):
        if self.rows is None:
            object.__setattr__(self, "rows", torch.arange(len(self.reader)))
        if self.met is None:
            object.__setattr__(self, "met", torch.zeros(len(self.reader), dtype=torch.uint8).share_memory_())
        if not len(self.rows):
            raise ValueError(f"{self.reader.source.name} has no images.")

    @property
    def kind(self) -> str:
        return self.reading.kind

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self), 3, *self.reading.size

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def skipped(self) -> list[str]:
        """What was left out so far, and why."""
        found = [*self.reader.source.skipped]
        for row in self.met.nonzero().flatten().tolist():
            record = self.reader.read(row)
            found += [f"{record.where}: {fault}" for fault in faults_of(attempt(record, self.reading))]
        return found

    @cached_property
    def labels(self) -> Tensor:
        """int64 (N,), of classes; -1 where a label is none, and `skip_corrupt` leaves it out. No image is read."""
        found = torch.empty(len(self.reader), dtype=torch.int64)
        for row, label in enumerate(self.reader.source.labels()):
            try:
                found[row] = number_of(label, self.reading)
            except ValueError as error:
                if not self.skip_corrupt:
                    raise CorruptRow(f"{self.reader.read(row).where}: {error}.") from error
                found[row] = -1
        found = found[self.rows]
        return found if self.numbers is None else torch.where(found < 0, found, self.numbers[found])

    def classes(self) -> list[int]:
        """Those that occur, where labels tell it and are at hand."""
        at_hand = self.kind == "label" and not any(isinstance(x, str) for x in self.reader.source.tables)
        return self.labels[self.labels >= 0].unique().tolist() if at_hand else []

    def strata(self) -> Tensor:
        return self.labels + 1 if self.kind == "label" else torch.zeros(len(self), dtype=torch.int64)

    @cached_property
    def blocks(self) -> Blocks | None:
        if not self.reader.by_groups:
            return None
        starts = torch.searchsorted(self.rows, torch.tensor(self.reader.starts))
        return Blocks(starts.unique(), self.reader.window)

    def subset(self, indices: Tensor) -> "ImagesOnDemand":
        part = replace(self, rows=self.rows[indices])
        if "labels" in self.__dict__:  # reading them again takes long
            part.__dict__["labels"] = self.labels[indices]
        return part

    def renumbered(self, class_names: list[str]) -> "ImagesOnDemand":
        """With these classes, among which all of its own are."""
        numbers = torch.tensor([class_names.index(name) for name in self.class_names])
        return replace(self, numbers=numbers, class_names=class_names)

    def sample(self) -> Tensor:
        """uint8 (n, 3, H, W): images from all over, of few blocks."""
        starts = torch.arange(len(self)) if self.blocks is None else self.blocks.starts[:-1]
        count = min(SAMPLED_BLOCKS if self.blocks is not None else SAMPLED, len(starts))
        firsts = starts[torch.linspace(0, len(starts) - 1, count).long()]
        each = torch.arange(SAMPLED // count if self.blocks is not None else 1)
        return self.take((firsts[:, None] + each).flatten().clamp_max(len(self) - 1).unique())[0]

    def take(self, samples: Tensor) -> tuple[Tensor, Tensor | Objects]:
        """Pixels and labels of some images (B,)."""
        records = [self.reader.read(row) for row in self.rows[samples].tolist()]
        if get_worker_info() is None and len(records) > 1:  # decoders release the GIL
            with ThreadPoolExecutor(max_workers=min(len(records), os.cpu_count())) as pool:
                outcomes = list(pool.map(lambda record: attempt(record, self.reading), records))
        else:
            outcomes = [attempt(record, self.reading) for record in records]
        found = [self._usable(sample, x, y) for sample, x, y in zip(samples.tolist(), records, outcomes, strict=True)]
        pixels = torch.from_numpy(np.stack([x.pixels for x in found]).transpose(0, 3, 1, 2).copy())
        labels = stack_labels(found, self.kind)
        return pixels, labels if self.numbers is None else renumber(labels, self.kind, self.numbers)

    def _usable(self, sample: int, record, outcome: Decoded | CorruptRow) -> Decoded:
        """The outcome, or that of the next sample that has one."""
        for step in range(1, len(self) + 1):
            if faults := faults_of(outcome):
                if not self.skip_corrupt:
                    raise CorruptRow(f"{record.where}: {faults[0]}. skip_corrupt=True leaves out what is like that.")
                self.met[self.rows[(sample + step - 1) % len(self)]] = 1
            if isinstance(outcome, Decoded):
                return outcome
            record = self.reader.read(int(self.rows[(sample + step) % len(self)]))
            outcome = attempt(record, self.reading)
        raise CorruptRow(f"{self.reader.source.name} has no images that can be read. {record.where}: {outcome}")


def faults_of(outcome: Decoded | CorruptRow) -> list:
    return [outcome] if isinstance(outcome, CorruptRow) else outcome.faults


def stack_labels(found: list[Decoded], kind: str) -> Tensor | Objects:
    if kind == "mask":
        return torch.from_numpy(np.stack([x.label for x in found]))
    if kind == "label":
        return torch.tensor([x.label for x in found])
    counts = torch.tensor([len(x.label[1]) for x in found])
    boxes = torch.tensor([box for x in found for box in x.label[0]], dtype=torch.float32).view(-1, 4)
    classes = torch.tensor([number for x in found for number in x.label[1]], dtype=torch.int64)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return Objects(offsets, classes, boxes, torch.tensor([x.size for x in found]))
