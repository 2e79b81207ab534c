"""Images decoded once: the pixels of a split in one file that is mapped into memory from then on.

A split's folder in the cache is named by a hash of where the split comes from and how it is read. It holds `pixels`
(N·3·H·W bytes), the labels (see `image_labels`) and `info.json`. It is written under a lock beside its place and
renamed, so that it is there as a whole or not at all, and two processes that start at once decode once.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from .folders import CACHE_FOLDER, cache_folder
from .image_decoding import IGNORED, CorruptRow, Decoded, Reading, attempt, open_row
from .image_labels import KEEPERS
from .image_sources import ROWS_AT_A_TIME, Row, Source
from .mapped_file import map_bytes
from .objects import Objects

MOST_OF_DISK = 0.9  # of what is free
VERSION = 3  # of the files' layout and of what decoding does


class Split(NamedTuple):
    pixels: Tensor  # uint8 (N, 3, H, W)
    labels: Tensor | Objects  # int64 (N,); objects; or masks, uint8 (N, H, W)
    classes: list[int]  # that occur
    skipped: list[str]


class SizesDiffer(ValueError):
    """Images of one split have different sizes, and image_size is not set."""


def decode_once(source: Source, reading: Reading, skip_corrupt: bool = False) -> Split:
    """A split's images, from the cache if they are there.

    Args:
        reading: its `size` is what images are resized to if they are larger, or differ in size.
        skip_corrupt: leave out, and name, what can't be read; otherwise the first is an error.
    """
    if reading.size and _is_larger(next(source.rows(), None), reading.size):
        return _cached(source, reading, skip_corrupt)
    try:
        return _cached(source, replace(reading, size=None), skip_corrupt)
    except SizesDiffer:
        if reading.size is None:
            raise
        return _cached(source, reading, skip_corrupt)


def place_of(source: Source, reading: Reading) -> Path:
    key = json.dumps([VERSION, source.identity, asdict(reading)])
    return cache_folder() / "images" / hashlib.sha256(key.encode()).hexdigest()[:32]


def why_not_stored(source: Source, reading: Reading, max_gb: float) -> str | None:
    """In words, why the decoded images of a split should not be stored; None if they are, or may be.

    How large they are is reckoned from the first of them.
    """
    if any((place_of(source, x) / "pixels").is_file() for x in (reading, replace(reading, size=None))):
        return None
    first = attempt(next(source.rows(), None), replace(reading, size=None))
    size = reading.size if isinstance(first, CorruptRow) else first.size
    if reading.size and (size[0] > reading.size[0] and size[1] > reading.size[1]):
        size = reading.size
    gigabytes = len(source) * (4 if reading.kind == "mask" else 3) * np.prod(size or (0, 0)) / 1e9
    if gigabytes > max_gb:
        return f"they would take {gigabytes:.3g} GB, and max_cache_gb is {max_gb:g}"
    folder = cache_folder()
    disk = next(folder for folder in (folder, *folder.absolute().parents) if folder.is_dir())
    if gigabytes > (free := shutil.disk_usage(disk).free / 1e9) * MOST_OF_DISK:
        return f"they would take {gigabytes:.3g} GB of the {free:.3g} that are free in {folder} ({CACHE_FOLDER})"
    return None


def _cached(source: Source, reading: Reading, skip_corrupt: bool) -> Split:
    place = place_of(source, reading)
    if not (found := _read(place, reading)):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{place}.lock"):
                if not (found := _read(place, reading)):  # another process may have written it meanwhile
                    _write(place, source, reading, skip_corrupt)
                    found = _read(place, reading)
        except OSError as error:
            raise OSError(
                f"decoded images can't be stored in {place.parent}: {error}. Set {CACHE_FOLDER} to another folder."
            ) from error
    if isinstance(found, str):
        raise SizesDiffer(found)
    if found.skipped and not skip_corrupt:
        raise CorruptRow(f"{found.skipped[0]}. {_more(found.skipped)}skip_corrupt=True leaves them out.")
    return found._replace(skipped=[*source.skipped, *found.skipped])


def _read(place: Path, reading: Reading) -> Split | str | None:
    """What is in the cache; None if it is missing or damaged."""
    try:
        info = json.loads((place / "info.json").read_text(encoding="utf-8"))
        if "sizes_differ" in info:
            return info["sizes_differ"]
        pixels = map_bytes(place / "pixels", info["shape"])
        labels = KEEPERS[reading.kind].read(place, info["shape"])
        return Split(pixels, labels, info["classes"], info["skipped"])
    except (OSError, ValueError, KeyError):
        return None


def _write(place: Path, source: Source, reading: Reading, skip: bool) -> None:
    partial = place.with_suffix(".partial")
    for leftover in (partial, place):  # of a process that was killed, or damaged
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    try:
        try:
            info = _decode_into(partial, source, reading, skip)
        except SizesDiffer as error:
            for file in partial.iterdir():
                file.unlink()
            info = {"sizes_differ": str(error)}  # so that this isn't found out again each time
        (partial / "info.json").write_text(json.dumps({"source": source.name, **info}, indent=2), encoding="utf-8")
        partial.rename(place)
        if "sizes_differ" in info:
            return
        size = sum(file.stat().st_size for file in place.iterdir()) / 1e9
        print(f"{source.name}: decoded into {place} ({size:.2g} GB; `hf-efficient cache` shows all)", flush=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _decode_into(folder: Path, source: Source, reading: Reading, skip: bool) -> dict:
    count, skipped, first = 0, [], None
    with open(folder / "pixels", "wb") as file, KEEPERS[reading.kind](folder) as labels:
        for row, outcome in _decode_rows(source, reading):
            faults = [outcome] if isinstance(outcome, CorruptRow) else outcome.faults
            if faults and not skip:
                raise CorruptRow(f"{row.where}: {faults[0]}. skip_corrupt=True leaves out what is like that.")
            skipped += [f"{row.where}: {fault}" for fault in faults]
            if isinstance(outcome, CorruptRow):
                continue
            pixels = outcome.pixels  # (H, W, 3)
            first = first or (row.where, pixels.shape)
            if pixels.shape != first[1]:
                raise SizesDiffer(
                    f"{first[0]} is {first[1][1]}x{first[1][0]} pixels and {row.where} is "
                    f"{pixels.shape[1]}x{pixels.shape[0]}: set image_size to resize them all."
                )
            file.write(pixels.transpose(2, 0, 1).tobytes())  # plain writes, since a full disk kills who maps it
            labels.add(outcome.label, outcome.size)
            count += 1
    if not count:
        raise ValueError(f"{source.name} has no images. {skipped[0] if skipped else ''}")
    height, width, channels = first[1]
    classes = sorted(labels.seen - {IGNORED} if reading.kind == "mask" else labels.seen)
    return {"shape": [count, channels, height, width], "classes": classes, "skipped": skipped}


def _decode_rows(source: Source, reading: Reading) -> Iterator[tuple[Row, Decoded | CorruptRow]]:
    """Decodes rows, in order, in threads: decoders release the GIL, so all cores are used."""

    rows = source.rows()
    with (
        tqdm(total=len(source), desc=f"decoding {source.name}", unit="image", disable=None, leave=False) as bar,
        ThreadPoolExecutor(max_workers=os.cpu_count()) as pool,
    ):
        while some := list(islice(rows, ROWS_AT_A_TIME)):
            yield from zip(some, pool.map(lambda row: attempt(row, reading), some), strict=True)
            bar.update(len(some))


def _is_larger(row: Row | None, size: tuple[int, int]) -> bool:
    try:
        with Image.open(open_row(row)) as image:
            return image.height > size[0] and image.width > size[1]
    except Exception:
        return False  # decoding will say what is wrong with it


def _more(skipped: list[str]) -> str:
    return f"So are {len(skipped) - 1} more. " if len(skipped) > 1 else ""
