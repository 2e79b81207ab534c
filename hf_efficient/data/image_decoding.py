"""Decodes one row: the image as RGB, and its label, at the size that is asked for."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from .image_sources import Row, UnreadableData
from .images import open_rgb

# Four numbers of a box, in pixels -> left, top, right, bottom, the last two being where it ends.
BOX_FORMATS = {
    "xywh": lambda x, y, width, height: (x, y, x + width, y + height),
    "xyxy": lambda left, top, right, bottom: (left, top, right, bottom),
    "inclusive": lambda left, top, right, bottom: (left, top, right + 1, bottom + 1),  # first and last pixel
}
IGNORED = 255  # the class of pixels that neither loss nor scores see
UNKNOWN = 254
SHOWN = 5  # classes in a message


@dataclass(frozen=True)
class Reading:
    """How rows are read; JSON-serialisable.

    Args:
        kind: of the labels: label, objects or mask.
        class_names: what labels are, or are indices of.
        size: (height, width) that images are resized to.
        box_format: one of BOX_FORMATS.
        mask_table: the class of each of 256 values of a mask; IGNORED, or UNKNOWN.
    """

    kind: str
    class_names: list[str] | None = None
    size: tuple[int, int] | None = None
    box_format: str = "xywh"
    mask_table: tuple[int, ...] | None = None

    @cached_property
    def numbers(self) -> dict[str | int, int]:
        """The class of a name, or of a number that is a class."""
        names = self.class_names or []
        return {**{name: index for index, name in enumerate(names)}, **{index: index for index in range(len(names))}}


class Decoded(NamedTuple):
    pixels: np.ndarray  # uint8 (H, W, 3)
    label: Any  # a class; (boxes, classes); or the mask, uint8 (H, W)
    size: tuple[int, int]  # height and width before resizing
    faults: list[str]  # boxes that were left out


class CorruptRow(UnreadableData):
    """A row without a readable image and label."""


def attempt(row: Row, reading: Reading) -> Decoded | CorruptRow:
    try:
        return decode(row, reading)
    except UnidentifiedImageError:  # whose message has an address of memory
        return CorruptRow("cannot identify the format of the image")
    except Exception as error:  # of what a decoder may raise there is no end
        return CorruptRow((str(error) or type(error).__name__).rstrip("."))


def decode(row: Row, reading: Reading) -> Decoded:
    image = open_rgb(open_row(row))
    label, faults, mask = row.label, [], None
    if reading.kind == "label":
        label = number_of(row.label, reading)
    elif reading.kind == "objects":
        label, faults = read_boxes(row.label, image.size, reading)
    else:
        mask = read_mask(row.label, image.size, reading.mask_table)
    width, height = image.size
    if reading.size and (height, width) != reading.size:
        size = reading.size[::-1]
        image = image.resize(size, Image.Resampling.BILINEAR)
        mask = mask and mask.resize(size, Image.Resampling.NEAREST)
    return Decoded(np.asarray(image), label if mask is None else np.asarray(mask), (height, width), faults)


def open_row(row: Row) -> io.BytesIO | Path:
    if row.fault:
        raise ValueError(row.fault)
    return as_file(row.image)


def as_file(content: bytes | Path) -> io.BytesIO | Path:
    if isinstance(content, Path) and not content.is_file():
        raise ValueError(f"there is no file {content}")
    return io.BytesIO(content) if isinstance(content, bytes) else content


def whole(label: Any) -> Any:
    """Tables with empty cells have floats for whole numbers."""
    return int(label) if isinstance(label, float) and label.is_integer() else label


def number_of(label: Any, reading: Reading) -> int:
    label = whole(label)
    if not isinstance(label, int | str) or isinstance(label, bool) or label not in reading.numbers:
        names = [*reading.class_names[:SHOWN], *(["..."] if len(reading.class_names) > SHOWN else [])]
        raise ValueError(
            f"label {label!r} is not one of the {len(reading.class_names)} classes, {', '.join(names)}; those that "
            "training images don't have need class_names"
        )
    return reading.numbers[label]


def read_boxes(objects: list, image_size: tuple[int, int], reading: Reading) -> tuple[tuple[list, list], list[str]]:
    """(boxes, classes) of (box, category) pairs, and what is wrong with those that were left out."""
    boxes, classes, faults = [], [], []
    for index, (box, category) in enumerate(objects):
        try:
            relative = relative_box(box, *image_size, reading.box_format)
            number = number_of(category, reading)
        except ValueError as error:
            faults.append(f"object {index}: {error}")
            continue
        boxes.append(relative)
        classes.append(number)
    return (boxes, classes), faults


def relative_box(box: Any, width: int, height: int, box_format: str) -> list[float]:
    """cx, cy, w, h as shares of the image. What reaches less than a pixel beyond it is rounding, and cut off."""
    numbers = [float(x) for x in box] if isinstance(box, Sequence) and None not in box else []
    if len(numbers) != 4 or not np.isfinite(numbers).all():
        raise ValueError(f"box {box!r} must be four numbers")
    left, top, right, bottom = BOX_FORMATS[box_format](*numbers)
    if not (left < right and top < bottom):
        raise ValueError(f"box {numbers}, read as box_format={box_format}, has no area")
    if not (left > -1 and top > -1 and right < width + 1 and bottom < height + 1):
        raise ValueError(
            f"box {numbers}, read as box_format={box_format}, is not inside the image of {width}x{height} pixels; "
            f"there are also {', '.join(x for x in BOX_FORMATS if x != box_format)}"
        )
    left, top, right, bottom = max(left, 0.0), max(top, 0.0), min(right, width), min(bottom, height)
    if not (left < right and top < bottom):
        raise ValueError(f"box {numbers}, read as box_format={box_format}, has no area inside the image")
    return [
        (left + right) / 2 / width,
        (top + bottom) / 2 / height,
        (right - left) / width,
        (bottom - top) / height,
    ]


def read_mask(content: bytes | Path, image_size: tuple[int, int], table: tuple[int, ...]) -> Image.Image:
    try:
        with Image.open(as_file(content)) as image:
            values = np.asarray(image)
    except UnidentifiedImageError as error:
        raise ValueError("its mask has a format that can't be identified") from error
    if values.ndim == 3:
        if image.mode not in ("RGB", "RGBA", "LA") or (image.mode != "LA" and np.ptp(values[..., :3], axis=-1).any()):
            raise ValueError(f"its mask is a picture in colours ({image.mode}): pixels must be numbers of classes")
        values = values[..., 0]
    if values.shape != image_size[::-1]:
        raise ValueError(
            f"its mask is {values.shape[1]}x{values.shape[0]} pixels, and the image {image_size[0]}x{image_size[1]}"
        )
    if values.min() < 0 or values.max() > 255:
        raise ValueError(f"its mask holds {values.max()}: classes must be 0 to {UNKNOWN - 1}")
    classes = np.array(table, np.uint8)[values.astype(np.uint8)]
    if (classes == UNKNOWN).any():
        raise ValueError(f"its mask holds {values[classes == UNKNOWN][0]}, which is none of the classes")
    return Image.fromarray(classes)


def mask_table(class_names: dict | Sequence[str] | None, ignore_index: int) -> tuple[int, ...]:
    """The class of each value of a mask.

    Args:
        class_names: by value; or those of the values 0, 1, ... without `ignore_index`; or None if any may come.
    """
    if isinstance(class_names, dict):
        numbers = {value: index for index, value in enumerate(class_names)}
    else:
        numbers = {value: index for index, value in enumerate(x for x in range(UNKNOWN) if x != ignore_index)}
        if class_names is not None:
            numbers = {value: index for value, index in numbers.items() if index < len(class_names)}
    special = {IGNORED: IGNORED} if IGNORED not in numbers else {}
    special |= {ignore_index: IGNORED} if ignore_index is not None else {}
    return tuple({**dict.fromkeys(range(256), UNKNOWN), **numbers, **special}[value] for value in range(256))
