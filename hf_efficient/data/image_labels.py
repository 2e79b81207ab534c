"""How the labels of decoded images are kept in the cache, one class per kind: written one by one, read at once.
`seen` are the classes that occur.

    label     labels.npy
    objects   offsets.npy, classes.npy, boxes.npy, sizes.npy
    mask      masks, a file of N·H·W bytes that is mapped into memory
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .mapped_file import map_bytes
from .objects import Objects


class KeptClasses:
    """int64 (N,)"""

    def __init__(self, folder: Path):
        self.folder, self.values, self.seen = folder, [], set()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            np.save(self.folder / "labels.npy", np.array(self.values, np.int64))

    def add(self, label: int, size: tuple[int, int]) -> None:
        self.values.append(label)
        self.seen.add(label)

    @staticmethod
    def read(folder: Path, shape: list[int]) -> Tensor:
        return torch.from_numpy(np.load(folder / "labels.npy"))


class KeptObjects:
    """`Objects` of N images"""

    def __init__(self, folder: Path):
        self.folder, self.counts, self.classes, self.boxes, self.sizes = folder, [], [], [], []
        self.seen = set()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            np.save(self.folder / "offsets.npy", np.cumsum([0, *self.counts], dtype=np.int64))
            np.save(self.folder / "classes.npy", np.array(self.classes, np.int64))
            np.save(self.folder / "boxes.npy", np.array(self.boxes, np.float32).reshape(-1, 4))
            np.save(self.folder / "sizes.npy", np.array(self.sizes, np.int64))

    def add(self, label: tuple[list, list], size: tuple[int, int]) -> None:
        boxes, classes = label
        self.counts.append(len(classes))
        self.classes += classes
        self.seen.update(classes)
        self.boxes += boxes
        self.sizes.append(size)

    @staticmethod
    def read(folder: Path, shape: list[int]) -> Objects:
        names = ("offsets", "classes", "boxes", "sizes")
        return Objects(*(torch.from_numpy(np.load(folder / f"{name}.npy")) for name in names))


class KeptMasks:
    """uint8 (N, H, W)"""

    def __init__(self, folder: Path):
        self.folder, self.seen = folder, set()

    def __enter__(self):
        self.file = open(self.folder / "masks", "wb")
        return self

    def __exit__(self, *_):
        self.file.close()

    def add(self, label: np.ndarray, size: tuple[int, int]) -> None:
        self.file.write(label.tobytes())
        self.seen.update(np.unique(label).tolist())

    @staticmethod
    def read(folder: Path, shape: list[int]) -> Tensor:
        count, _, height, width = shape
        return map_bytes(folder / "masks", [count, height, width])


KEEPERS = {"label": KeptClasses, "objects": KeptObjects, "mask": KeptMasks}
