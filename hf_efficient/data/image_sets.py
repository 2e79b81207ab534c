"""Images with labels, by name or path, decoded once.

    cifar10, cifar100, tiny-imagenet, mnist   classes
    tiny-imagenet, bccd                       objects: boxes with classes
    camvid                                    masks: a class for each pixel
    digits                                    scikit-learn's, 8x8 pixels, comes with it

are found in the folder that HF_EFFICIENT_DATA names, or else on the Hub. A path works too, and `<owner>/<name>` of the
Hub: `image_files` says what may be there.
"""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch

from .decoded_images import ImageSet
from .image_cache import Split, decode_once, why_not_stored
from .image_decoding import Reading, mask_table, whole
from .image_files import Finder
from .image_rows import RowReader
from .image_sources import Source
from .images_on_demand import ImagesOnDemand
from .label_splits import QUARTER, first_of_classes, part_off, quarter
from .named_images import FACTS, find_sources
from .split_names import EVALUATION_NAMES, VALIDATION_NAMES

Images = ImageSet | ImagesOnDemand
NOTHING = {"label": "labels", "objects": "objects", "mask": "pixels that count"}


class ImageSplits(NamedTuple):
    train: Images
    evaluation: Images


@dataclass(frozen=True)
class ImageOptions:
    """Which images, for training and for evaluation: the split "validation" if there is one, else "test"; where there
    is neither, every fourth image of each class, after a shuffle that is always the same.

    Args:
        name: a name, a path, or <owner>/<name> of the Hub
        limit: at most so many images of each split, balanced over the classes
        evaluation_limit: of the evaluation split, if it is to be another
        validation: so many training images, balanced over the classes, take the place of the evaluation split, which
            then is a test that chooses nothing
        skip_corrupt: leave out what can't be read (`ImageSet.skipped` says what, and why) rather than stop
        image_size: height and width of images that are larger, or of different sizes; by default the model's
        image_column, label_column: of tables; usual names and types are found
        image_folder: where paths of images begin; by default beside the file that has them
        subset: of a data set on the Hub that has several
        class_names: what the classes are called, by number, where the data don't say
        max_cache_gb: decoded images that take more, or would fill the disk, are not stored: batches are decoded when
            they are needed, all images at `image_size`
        streaming: store nothing at all, whatever the size; parquet files of the Hub are read where they are
    """

    name: str
    limit: int | None = None
    evaluation_limit: int | None = None
    validation: int | None = None
    skip_corrupt: bool = False
    image_size: int | list[int] | tuple[int, int] | None = None
    image_column: str | None = None
    label_column: str | None = None
    image_folder: str | None = None
    subset: str | None = None
    class_names: list[str] | None = None
    max_cache_gb: float = 20.0
    streaming: bool = False

    kind: ClassVar[str] = "label"

    def __post_init__(self):
        if not self.max_cache_gb >= 0:
            raise ValueError(f"max_cache_gb={self.max_cache_gb} must not be negative.")
        for option in ("limit", "evaluation_limit", "validation"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise ValueError(f"{option}={value} must be at least 1, or None.")
        if self.size and (len(self.size) != 2 or min(self.size) < 1):
            raise ValueError(f"image_size={self.image_size} must be a number of pixels, or [height, width].")
        names = self.class_names.values() if isinstance(self.class_names, dict) else self.class_names or []
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ValueError(f"class_names has {twice[0]!r} twice.")

    @property
    def size(self) -> tuple[int, int] | None:
        size = self.image_size
        return (size, size) if isinstance(size, int) else tuple(size) if size is not None else None

    def known(self, option: str):
        """What is asked for, or else what is known of data of this name."""
        value = getattr(self, option)
        return FACTS.get(self.name, {}).get(option) if value is None else value

    def reading(self, class_names: list[str] | None) -> Reading:
        return Reading(self.kind, class_names, self.size)

    def sources(self) -> dict[str, Source]:
        finder = Finder(
            self.kind, self.image_column, self.label_column, self.image_folder, self.subset, self.streaming
        )
        return find_sources(self.name, finder)

    def load(self) -> ImageSplits:
        splits = hold_out(_digits()) if self.name == "digits" else _load(self)
        train = limited(splits.train, self.limit)
        evaluation = limited(splits.evaluation, self.evaluation_limit or self.limit)
        if self.validation is None:
            return ImageSplits(train, evaluation)
        if self.validation >= len(train):
            raise ValueError(f"validation={self.validation} would leave nothing of {len(train)} training images.")
        return ImageSplits(*map(train.subset, part_off(train.strata(), self.validation)))

    def load_test(self) -> Images | None:
        """What chooses nothing: the split "test" beside a split for validation; or, if training images are held out,
        the evaluation split."""
        if self.validation is not None:
            return replace(self, validation=None).load().evaluation
        sources = {} if self.name == "digits" else self.sources()
        if "test" not in sources or not any(name in sources for name in VALIDATION_NAMES):
            return None
        train, test = _decode(sources, self, "test", train_is_new=False)
        return limited(test, self.evaluation_limit or self.limit)


@dataclass(frozen=True)
class ObjectOptions(ImageOptions):
    """Which images with objects, any number in each. Tables have a column `objects`: {bbox: [...], category: [...]}.

    Args:
        box_format: what the four numbers of a box are, in pixels: "xywh" (COCO: left, top, width, height), "xyxy"
            (left, top, right, bottom), or "inclusive" (the same, the last two being pixels that belong to it)
    """

    box_format: Literal["xywh", "xyxy", "inclusive"] | None = None

    kind: ClassVar[str] = "objects"

    def reading(self, class_names):
        return replace(super().reading(class_names), box_format=self.known("box_format") or "xywh")


@dataclass(frozen=True)
class MaskOptions(ImageOptions):
    """Which images with masks: images of the same size, whose pixels are the numbers of classes.

    Args:
        class_names: what the classes are called, by number; or {value: name}, if pixels have other values
        ignore_index: the value of pixels that don't count; it is no class. 255 is ignored too
    """

    class_names: list[str] | dict[int, str] | None = None
    ignore_index: int | None = None

    kind: ClassVar[str] = "mask"

    def reading(self, class_names):
        return replace(super().reading(None), mask_table=mask_table(class_names, self.known("ignore_index")))


def load_images(name: str | Path, **options) -> ImageSplits:
    """Images with classes; options are those of `ImageOptions`."""
    return ImageOptions(str(name), **options).load()


def load_objects(name: str | Path, **options) -> ImageSplits:
    """Images with objects; options are those of `ObjectOptions`."""
    return ObjectOptions(str(name), **options).load()


def load_masks(name: str | Path, **options) -> ImageSplits:
    """Images with masks; options are those of `MaskOptions`."""
    return MaskOptions(str(name), **options).load()


def limited(images: Images, limit: int | None) -> Images:
    """At most so many images, as many of each class as can be, in their order."""
    return images if limit is None or limit >= len(images) else images.subset(first_of_classes(images.strata(), limit))


def hold_out(images: Images) -> ImageSplits:
    """Splits off a quarter of the images, of classes the same share of each."""
    classes = images.strata() if images.kind == "label" else torch.zeros(len(images), dtype=torch.int64)
    train, held_out = quarter(classes)
    if not len(held_out):
        raise ValueError(f"{len(images)} images are too few for an evaluation split: each class needs {QUARTER}.")
    return ImageSplits(images.subset(train), images.subset(held_out))


def _digits() -> ImageSet:
    from sklearn.datasets import load_digits

    digits = load_digits()
    grey = torch.from_numpy((digits.images * 255 / 16).round().astype(np.uint8))  # they come as 0 to 16
    labels = torch.from_numpy(digits.target).long()
    return ImageSet(grey[:, None].expand(-1, 3, -1, -1), labels, [str(name) for name in digits.target_names])


def _load(options: ImageOptions) -> ImageSplits:
    sources = options.sources()
    evaluation = next((name for name in EVALUATION_NAMES if name in sources), None)
    train, *others = _decode(sources, options, evaluation)
    return ImageSplits(train, *others) if others else hold_out(train)


def _decode(
    sources: dict[str, Source], options: ImageOptions, other: str | None, train_is_new: bool = True
) -> list[Images]:
    """The training split, and the other if one is named."""
    train = sources.get("train", sources.get("training"))
    if train is None:
        raise ValueError(f"there is no split 'train', only {', '.join(sources)}.")
    names = options.known("class_names") or train.class_names
    if names is None and options.kind != "mask":
        names = _name_classes(train)
    there = [train] if other is None else [train, sources[other]]
    for source in there[1:]:
        if not source.by_name and source.class_names not in (None, names):
            number, (theirs, ours) = first_difference(source.class_names, names or [])
            raise ValueError(
                f"{source.name} and {train.name} must have the same classes in the same order: class {number} is "
                f"{theirs!r} in {source.name} and {ours!r} in {train.name}."
            )
    reading = options.reading(names)
    splits = [_read(source, reading, names, options, says=source is not train or train_is_new) for source in there]
    if options.kind == "mask":
        names = _names_of_masks(names, splits[0])
    sets, seen = [], None
    for source, split in zip(there, splits, strict=True):
        if isinstance(split, Split):
            sets.append(ImageSet(split.pixels, split.labels, names, split.skipped))
            classes = set(split.classes)
            if not classes:
                raise ValueError(
                    f"{source.name} has no {NOTHING[options.kind]}: there is nothing to learn or to score."
                )
        else:
            sets.append(replace(split, class_names=names))
            classes = set(sets[-1].classes())
        seen = classes if seen is None else seen
        if unseen := sorted(classes - seen):
            if unseen[-1] >= len(names):
                raise ValueError(
                    f"{source.name} has masks of class {unseen[-1]}, and training has none above {len(names) - 1}: "
                    "set class_names to those of all classes."
                )
            warnings.warn(
                f"{source.name} has {counted(unseen)} in no training image, as {names[unseen[0]]!r}.",
                stacklevel=5,
            )
    return sets


def first_difference(names: Sequence[str], others: Sequence[str]) -> tuple[int, tuple]:
    return next((i, pair) for i, pair in enumerate(zip_longest(names, others)) if pair[0] != pair[1])


def counted(classes: list) -> str:
    return f"{len(classes)} classes that are" if len(classes) > 1 else "a class that is"


def _read(source: Source, reading: Reading, names, options: ImageOptions, says: bool) -> Split | ImagesOnDemand:
    """A split from the cache, or to be decoded when it is needed, which it says."""
    why = "streaming is true" if options.streaming else why_not_stored(source, reading, options.max_cache_gb)
    if why is None:
        return decode_once(source, reading, options.skip_corrupt)
    for option, value in (("image_size", reading.size), ("class_names", names)):
        if value is None:
            raise ValueError(
                f"{option} is missing: images of {source.name} are not stored, since {why}. Set {option}."
            )
    found = ImagesOnDemand(RowReader(source), reading, names, options.skip_corrupt)
    held = f"; a process holds up to {max(1, found.reader.held_bytes / 1e6):.0f} MB of them" if found.blocks else ""
    if says:
        print(f"{source.name}: {len(found):,} images are decoded when they are needed, since {why}{held}", flush=True)
    return found


def _name_classes(source: Source) -> list[str]:
    """From the labels themselves: words, or numbers from 0 on."""
    labels = {whole(label) for label in source.labels()} - {None}
    if not labels:
        fault = next((f" {row.where}: {row.fault}." for row in source.rows() if row.fault), "")
        raise ValueError(f"{source.name} has no {NOTHING[source.kind]} in column {source.label_column!r}.{fault}")
    if all(isinstance(label, str) for label in labels):
        return sorted(labels)
    wrong = next((x for x in labels if not isinstance(x, int) or isinstance(x, bool) or x < 0), None)
    if wrong is None:
        return [str(number) for number in range(max(labels) + 1)]
    raise ValueError(
        f"labels of {source.name} must be whole numbers from 0 on, or all of them text, got {wrong!r} in column "
        f"{source.label_column!r}."
    )


def _names_of_masks(names: dict | list[str] | None, split: Split) -> list[str]:
    if names is not None:
        return list(names.values()) if isinstance(names, dict) else names
    if not any(split.classes):
        raise ValueError(
            "masks hold no class but 0 and what is ignored (255, ignore_index), if that: if 255 is a class, set "
            "class_names={0: background, 255: object}."
        )
    return [str(number) for number in range(max(split.classes) + 1)]
