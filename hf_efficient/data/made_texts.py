"""Data sets that are made here, not downloaded: each split is made once and kept in the cache folder."""

import hashlib
import inspect
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import FileLock
from tqdm import tqdm

from .folders import CACHE_FOLDER, cache_folder
from .listops import ListOps
from .pathfinder import Pathfinder

MAKERS = {"listops": ListOps, "pathfinder": Pathfinder}
VERSION = 1  # of what the makers make
ROWS_AT_A_TIME = 1000


def make_splits(name: str, options: dict[str, Any], limits: dict[str, int | None]) -> dict:
    """split -> `datasets.Dataset` of "text" and "label".

    Args:
        options: of the maker.
        limits: split -> samples, by default all.
    """
    known = inspect.signature(MAKERS[name]).parameters
    for key, value in options.items():
        if key not in known:
            raise ValueError(f"options.{key} is unknown; {name} has {', '.join(known)}.")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"options.{key}={value!r} must be a whole number.")
    try:
        maker = MAKERS[name](**options)
    except ValueError as error:
        raise ValueError(f"options.{error}") from error
    sizes = {split: min(size, limits.get(split) or size) for split, size in maker.sizes.items()}
    settings = {key: options.get(key, parameter.default) for key, parameter in known.items()}
    key = json.dumps([VERSION, settings])
    return {split: make_once(name, maker, split, size, key) for split, size in sizes.items()}


def make_once(name: str, maker, split: str, size: int, key: str):
    """A split, from the cache if it is there.

    Args:
        key: what tells it from others of this name and size.
    """
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=maker.class_names)})
    key = hashlib.sha256(key.encode()).hexdigest()[:16]
    file = cache_folder() / "made" / f"{name}-{split}-{size}-{key}.arrow"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock"):
            if not file.is_file():
                _write(file, features.arrow_schema, maker, split, size, f"making {name}, {split}")
    except OSError as error:
        raise OSError(
            f"{name} can't be stored in {file.parent}: {error}. Set {CACHE_FOLDER} to another folder."
        ) from error
    return Dataset.from_file(str(file))


def _write(file: Path, schema: pa.Schema, maker, split: str, size: int, what: str) -> None:
    """As a whole or not at all."""
    draft = file.with_suffix(".partial")
    try:
        with (
            draft.open("wb") as opened,
            pa.ipc.new_stream(opened, schema) as stream,
            tqdm(total=size, desc=what, unit="sample", disable=None, leave=False) as bar,
        ):
            for start in range(0, size, ROWS_AT_A_TIME):
                rows = [maker.sample(split, index) for index in range(start, min(size, start + ROWS_AT_A_TIME))]
                columns = [
                    pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)
                ]
                stream.write_batch(pa.record_batch(columns, schema=schema))
                bar.update(len(rows))
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)
