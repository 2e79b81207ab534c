"""Labelled images by name or path, decoded once.

cifar10, cifar100, tiny-imagenet, mnist   from the folder in HF_EFFICIENT_DATA if it has them, else from the Hub
digits                                    scikit-learn's, 8x8 pixels, comes with it
a path                                    a parquet file, a folder of them, or a folder of images: [split/]class/image
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .folders import DATA_FOLDER
from .image_cache import decode_once
from .image_sources import Source, TableSource, find_splits, hub_splits
from .label_splits import QUARTER, first_of_classes, part_off, quarter
from .split_names import EVALUATION_NAMES

FOLDERS = {"cifar10": "cifar10", "cifar100": "cifar100", "tiny-imagenet": "tiny_imagenet", "mnist": "mnist"}
REPOSITORIES = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "tiny-imagenet": "zh-plus/tiny-imagenet",
    "mnist": "ylecun/mnist",
}


@dataclass(frozen=True)
class ImageSet:
    """
    Args:
        pixels: uint8 (N, 3, H, W); a memory-mapped file, so pages are read when they are needed.
        labels: int64 (N,)
        boxes: float32 (N, 4), one object for each image: cx, cy, w, h as shares of it.
        skipped: what was left out because it is corrupt, and why.
    """

    pixels: Tensor
    labels: Tensor
    class_names: list[str]
    boxes: Tensor | None = None
    skipped: list[str] = field(default_factory=list)

    def __post_init__(self):
        if self.pixels.dtype != torch.uint8 or self.pixels.dim() != 4:
            raise ValueError(f"pixels must be uint8 (N, C, H, W), got {self.pixels.dtype} {tuple(self.pixels.shape)}.")
        for name in ("labels", "boxes"):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.pixels):
                raise ValueError(f"there are {len(value)} {name} for {len(self.pixels)} images.")
        wrong = self.labels[(self.labels < 0) | (self.labels >= len(self.class_names))]
        if len(wrong):
            raise ValueError(f"labels contains {wrong[0].item()}, but there are only {len(self.class_names)} classes.")

    def __len__(self) -> int:
        return len(self.pixels)

    def subset(self, indices: Tensor) -> "ImageSet":
        """These images, as a copy."""
        boxes = None if self.boxes is None else self.boxes[indices]
        return ImageSet(self.pixels[indices], self.labels[indices], self.class_names, boxes, self.skipped)

    def limited(self, limit: int | None) -> "ImageSet":
        """At most so many images, as many of each class as can be, in their order."""
        if limit is None or limit >= len(self):
            return self
        return self.subset(first_of_classes(self.labels, limit))


class ImageSplits(NamedTuple):
    train: ImageSet
    evaluation: ImageSet


def load_images(
    name: str | Path,
    *,
    limit: int | None = None,
    evaluation_limit: int | None = None,
    validation: int | None = None,
    skip_corrupt: bool = False,
    boxes: bool = False,
    image_size: int | tuple[int, int] | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
) -> ImageSplits:
    """Images for training and for evaluation: the split "validation" if there is one, else "test"; where there is
    neither, every fourth image of each class, after a shuffle that is always the same.

    Args:
        limit: at most so many images of each split, balanced over the classes.
        evaluation_limit: of the evaluation split, if it is to be another.
        validation: so many training images, balanced over the classes, take the place of the evaluation split, which
            then is a test that chooses nothing.
        skip_corrupt: leave out what can't be read (`ImageSet.skipped` says what, and why) rather than raise.
        boxes: with the object's box in each image.
        image_size: height and width of images that are larger, or of different sizes.
        image_column, label_column: of tables; usual names are found.
    """
    for option, value in (("limit", limit), ("evaluation_limit", evaluation_limit), ("validation", validation)):
        if value is not None and value < 1:
            raise ValueError(f"{option}={value} must be at least 1, or None.")
    if name == "digits":
        splits = hold_out(_digits())
    else:
        size = (image_size, image_size) if isinstance(image_size, int) else image_size and tuple(image_size)
        splits = _decode(_find(name, image_column, label_column), size, skip_corrupt)
    train, evaluation = (_with_or_without_boxes(images, boxes, name) for images in splits[:2])
    evaluation_limit = limit if evaluation_limit is None else evaluation_limit
    train, evaluation = train.limited(limit), evaluation.limited(evaluation_limit)
    if validation is None:
        return ImageSplits(train, evaluation)
    if validation >= len(train):
        raise ValueError(f"validation={validation} would leave nothing of {len(train)} training images.")
    return ImageSplits(*map(train.subset, part_off(train.labels, validation)))


def hold_out(images: ImageSet) -> ImageSplits:
    """Splits off a quarter of the images, the same share of every class."""
    train, held_out = quarter(images.labels)
    if not len(held_out):
        raise ValueError(f"{len(images)} images are too few for an evaluation split: each class needs {QUARTER}.")
    return ImageSplits(images.subset(train), images.subset(held_out))


def _digits() -> ImageSet:
    from sklearn.datasets import load_digits

    digits = load_digits()
    grey = torch.from_numpy((digits.images * 255 / 16).round().astype(np.uint8))  # they come as 0 to 16
    labels = torch.from_numpy(digits.target).long()
    return ImageSet(grey[:, None].expand(-1, 3, -1, -1), labels, [str(name) for name in digits.target_names])


def _find(name: str | Path, image_column: str | None, label_column: str | None) -> dict[str, Source]:
    if name not in FOLDERS:
        path = Path(name).expanduser()
        if not path.exists():
            known = ", ".join((*FOLDERS, "digits"))
            raise ValueError(
                f"unknown images {str(name)!r}: there are {known}, or the path of a parquet file, a folder of them, "
                "or a folder of images, as <path>/train/<class>/<image>.png."
            )
        return find_splits(path, image_column, label_column)
    if DATA_FOLDER in os.environ:
        folder = Path(os.environ[DATA_FOLDER]).expanduser()
        if not folder.is_dir():
            raise ValueError(f"{DATA_FOLDER}={str(folder)!r} is not a folder.")
        if (folder / FOLDERS[name]).is_dir():
            return find_splits(folder / FOLDERS[name], image_column, label_column)
    from datasets.exceptions import DatasetsError

    try:
        return hub_splits(REPOSITORIES[name], image_column, label_column)
    except (OSError, ValueError, DatasetsError) as error:
        raise ValueError(
            f"{name} is not in the folder that the variable {DATA_FOLDER} names "
            f"({os.environ.get(DATA_FOLDER, 'not set')}), which should hold it as {FOLDERS[name]}/*.parquet or "
            f"{FOLDERS[name]}/train/<class>/<image>.png, and {REPOSITORIES[name]} can't be read from the Hub: {error}"
        ) from error


def _decode(sources: dict[str, Source], size: tuple[int, int] | None, skip_corrupt: bool) -> ImageSplits:
    evaluation = next((sources[name] for name in EVALUATION_NAMES if name in sources), None)
    train = sources.get("train") or sources.get("training")
    if train is None:
        raise ValueError(f"there is no split 'train', only {', '.join(sources)}.")
    names = train.class_names or _name_classes(train)
    if isinstance(evaluation, TableSource) and evaluation.class_names not in (None, names):
        raise ValueError(f"{evaluation.name} and {train.name} must have the same classes in the same order.")

    def decode(source: Source) -> ImageSet:
        pixels, labels, boxes, skipped = decode_once(source, names, size, skip_corrupt)
        return ImageSet(pixels, labels, names, boxes, skipped)

    return hold_out(decode(train)) if evaluation is None else ImageSplits(decode(train), decode(evaluation))


def _name_classes(source: Source) -> list[str]:
    """From the labels themselves: words, or numbers from 0 on."""
    labels = [label for label in source.labels() if label is not None]
    if all(isinstance(label, str) for label in labels):
        return sorted(set(labels))
    if all(isinstance(label, int) for label in labels):
        return [str(number) for number in range(max(labels) + 1)]
    raise ValueError(f"labels of {source.name} must be whole numbers or strings, got {labels[0]!r}.")


def _with_or_without_boxes(images: ImageSet, boxes: bool, name: str | Path) -> ImageSet:
    if not boxes:
        return ImageSet(images.pixels, images.labels, images.class_names, None, images.skipped)
    if images.boxes is None:
        raise ValueError(f"{name} has no boxes. 'tiny-imagenet' in {DATA_FOLDER} has them (column 'objects').")
    missing = images.boxes.isnan().any(1).nonzero().flatten()
    if len(missing):
        raise ValueError(
            f"boxes: each image needs exactly one box inside it, but {len(missing)} images of {name} have another "
            f"number; the first is image {missing[0]}."
        )
    return images
