"""Images decoded once: the pixels of a split in one file that is mapped into memory from then on.

A split's folder in the cache is named by a hash of where the split comes from. It holds `pixels` (N·3·H·W bytes),
`labels.npy`, `boxes.npy` and `info.json`. It is written under a lock beside its place and renamed, so that it is there
as a whole or not at all, and two processes that start at once decode once.
"""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from .folders import CACHE_FOLDER, cache_folder
from .image_sources import ROWS_AT_A_TIME, Row, Source
from .images import open_rgb

VERSION = 2  # of the files' layout and of what decoding does


class Decoded(NamedTuple):
    pixels: Tensor  # uint8 (N, 3, H, W)
    labels: Tensor  # int64 (N,)
    boxes: Tensor | None  # float32 (N, 4), cx, cy, w, h in [0, 1]; NaN for an image that has not exactly one
    skipped: list[str]


class SizesDiffer(ValueError):
    """Images of one split have different sizes, and image_size is not set."""


class CorruptRow(ValueError):
    """A row without a readable image and label."""


def decode_once(
    source: Source, class_names: list[str], image_size: tuple[int, int] | None = None, skip_corrupt: bool = False
) -> Decoded:
    """A split's images, from the cache if they are there.

    Args:
        class_names: what labels are, or are indices of.
        image_size: (height, width) to which images are resized if they are larger, or differ in size.
        skip_corrupt: leave out, and name, rows that can't be read; otherwise the first is an error.
    """
    if image_size and _is_larger(next(source.rows(), None), image_size):
        return _cached(source, class_names, image_size, skip_corrupt)
    try:
        return _cached(source, class_names, None, skip_corrupt)
    except SizesDiffer:
        if image_size is None:
            raise
        return _cached(source, class_names, image_size, skip_corrupt)


def _cached(source: Source, class_names: list[str], size: tuple[int, int] | None, skip_corrupt: bool) -> Decoded:
    key = json.dumps([VERSION, source.identity, class_names, size])
    place = cache_folder() / "images" / hashlib.sha256(key.encode()).hexdigest()[:32]
    if not (found := _read(place)):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{place}.lock"):
                if not (found := _read(place)):  # another process may have written it meanwhile
                    _write(place, source, class_names, size, skip_corrupt)
                    found = _read(place)
        except OSError as error:
            raise OSError(
                f"decoded images can't be stored in {place.parent}: {error}. Set {CACHE_FOLDER} to another folder."
            ) from error
    if isinstance(found, str):
        raise SizesDiffer(found)
    if found.skipped and not skip_corrupt:
        raise CorruptRow(f"{found.skipped[0]}. {_more(found.skipped)}skip_corrupt=True leaves them out.")
    return found


def _read(place: Path) -> Decoded | str | None:
    """What is in the cache; None if it is missing or damaged."""
    try:
        info = json.loads((place / "info.json").read_text(encoding="utf-8"))
        if "sizes_differ" in info:
            return info["sizes_differ"]
        shape, pixels = info["shape"], place / "pixels"
        if pixels.stat().st_size != np.prod(shape):
            return None
        labels = torch.from_numpy(np.load(place / "labels.npy"))
        boxes = torch.from_numpy(np.load(place / "boxes.npy")) if info["has_boxes"] else None
        mapped = torch.from_file(str(pixels), size=pixels.stat().st_size, dtype=torch.uint8)
        return Decoded(mapped.view(shape), labels, boxes, info["skipped"])
    except (OSError, ValueError, KeyError):
        return None


def _write(place: Path, source: Source, class_names: list[str], size: tuple[int, int] | None, skip: bool) -> None:
    partial = place.with_suffix(".partial")
    for leftover in (partial, place):  # of a process that was killed, or damaged
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    try:
        try:
            info = _decode_into(partial, source, class_names, size, skip)
        except SizesDiffer as error:
            (partial / "pixels").unlink()
            info = {"sizes_differ": str(error)}  # so that this isn't found out again each time
        (partial / "info.json").write_text(json.dumps({"source": source.name, **info}, indent=2), encoding="utf-8")
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _decode_into(folder: Path, source: Source, class_names: list[str], size, skip: bool) -> dict:
    numbers = {name: index for index, name in enumerate(class_names)}
    labels, boxes, skipped, first = [], [], [], None
    with open(folder / "pixels", "wb") as file:
        for row, outcome in _decode_rows(source, numbers, size):
            if isinstance(outcome, CorruptRow):
                if not skip:
                    raise outcome
                skipped.append(str(outcome))
                continue
            pixels, label, box = outcome  # (H, W, 3)
            first = first or (row.where, pixels.shape)
            if pixels.shape != first[1]:
                raise SizesDiffer(
                    f"{first[0]} is {first[1][1]}x{first[1][0]} pixels and {row.where} is "
                    f"{pixels.shape[1]}x{pixels.shape[0]}: set image_size to resize them all."
                )
            file.write(pixels.transpose(2, 0, 1).tobytes())  # plain writes, since a full disk kills who maps it
            labels.append(label)
            boxes.append(box)
    if not labels:
        raise ValueError(f"{source.name} has no images. {skipped[0] if skipped else ''}")
    height, width, channels = first[1]
    has_boxes = bool(np.isfinite(boxes).any())
    np.save(folder / "labels.npy", np.array(labels, np.int64))
    if has_boxes:
        np.save(folder / "boxes.npy", np.array(boxes, np.float32))
    return {"shape": [len(labels), channels, height, width], "has_boxes": has_boxes, "skipped": skipped}


def _decode_rows(source: Source, numbers: dict[str, int], size) -> Iterator[tuple[Row, tuple | CorruptRow]]:
    """Decodes rows, in order, in threads: decoders release the GIL, so all cores are used."""

    def attempt(row: Row):
        try:
            return _decode(row, numbers, size)
        except Exception as error:  # of what a decoder may raise there is no end
            reason = str(error) or type(error).__name__
            return CorruptRow(f"{row.where}: {reason.rstrip('.')}")

    rows = source.rows()
    with (
        tqdm(total=len(source), desc=f"decoding {source.name}", unit="image", disable=None, leave=False) as bar,
        ThreadPoolExecutor(max_workers=os.cpu_count()) as pool,
    ):
        while some := list(islice(rows, ROWS_AT_A_TIME)):
            yield from zip(some, pool.map(attempt, some), strict=True)
            bar.update(len(some))


def _decode(row: Row, numbers: dict[str, int], size: tuple[int, int] | None) -> tuple[np.ndarray, int, list[float]]:
    label = numbers.get(row.label) if isinstance(row.label, str) else row.label
    if label is None or not 0 <= label < len(numbers):
        raise ValueError(f"label {row.label!r} is not one of the {len(numbers)} classes")
    image = open_rgb(_file(row))
    box = _relative_box(row.bbox, *image.size)
    if size and image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image), label, box


def _file(row: Row) -> io.BytesIO | Path:
    if row.fault:
        raise ValueError(row.fault)
    return io.BytesIO(row.image) if isinstance(row.image, bytes) else row.image


def _relative_box(bbox: list[float] | None, width: int, height: int) -> list[float]:
    """First and last pixel -> cx, cy, w, h as shares of the image; NaN if it is not a box inside the image."""
    if bbox is None or len(bbox) != 4:
        return [np.nan] * 4
    left, top, right, bottom = bbox[0], bbox[1], bbox[2] + 1, bbox[3] + 1
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        return [np.nan] * 4
    return [
        (left + right) / 2 / width,
        (top + bottom) / 2 / height,
        (right - left) / width,
        (bottom - top) / height,
    ]


def _is_larger(row: Row | None, size: tuple[int, int]) -> bool:
    try:
        with Image.open(_file(row)) as image:
            return image.height > size[0] and image.width > size[1]
    except Exception:
        return False  # decoding will say what is wrong with it


def _more(skipped: list[str]) -> str:
    return f"So are {len(skipped) - 1} more. " if len(skipped) > 1 else ""
