"""A split of labelled images as rows: of parquet files, of a data set of `datasets`, or of a table in memory.

A row has an image and its label, of one of three kinds:

    label     a class, by number or name
    objects   boxes with their classes, any number of them
    mask      an image of the same size whose pixels are classes
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

LABELS = ("label", "objects", "mask")
ROWS_AT_A_TIME = 256
BOX_KEYS = ("bbox", "boxes", "box", "bboxes")
CATEGORY_KEYS = ("category", "categories", "label", "labels", "category_id", "class", "classes", "name")


class UnreadableData(ValueError):
    """What is wrong with data, in one line."""

    def __str__(self) -> str:
        """Without the traceback that a DataLoader puts before what its workers raise."""
        return super().__str__().rpartition(f".{type(self).__name__}: ")[2].rstrip()


class Row(NamedTuple):
    """One image, not yet decoded; `fault` says why there is none."""

    where: str
    image: bytes | Path | None
    label: Any  # a class; a list of (box, class); or the mask, as bytes or the path of a file
    fault: str | None = None


@dataclass(frozen=True)
class Source:
    """One split.

    Args:
        name: what errors call it.
        identity: changes when the data do; JSON-serialisable.
        tables: parquet files, as paths or as addresses that fsspec opens (hf://...), or what is read already:
            `datasets.Dataset` or `pyarrow.Table`.
        image_column, label_column: the latter of a label, of objects or of a mask.
        kind: of the labels, one of LABELS.
        class_names: by label; None where the data don't say.
        by_name: labels are names themselves, so that another split may have them in another order.
        root: where paths in the table begin.
        skipped: what was left out already, and why.
    """

    name: str
    identity: list
    tables: list
    image_column: str
    label_column: str
    kind: str = "label"
    class_names: list[str] | None = None
    by_name: bool = False
    root: Path = Path()
    skipped: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(self._length(table) for table in self.tables)

    def rows(self) -> Iterator[Row]:
        for table in self.tables:
            index = 0
            for batch in self._batches(table, [self.image_column, self.label_column]):
                for record in batch.to_pylist():
                    yield self.row_of(table, index, record)
                    index += 1

    def labels(self) -> Iterator:
        """All classes as they stand there, without the images; of objects, those that can be read."""
        for table in self.tables:
            for batch in self._batches(table, [self.label_column]):
                for value in batch.column(self.label_column).to_pylist():
                    if self.kind == "label":
                        yield value
                        continue
                    with suppress(ValueError):  # which names its row when that is decoded
                        yield from (category for _, category in read_objects(value))

    def _length(self, table) -> int:
        if not is_parquet(table):
            return len(table)
        with naming(table), open_parquet(table) as file:
            return file.metadata.num_rows

    def _batches(self, table, columns: list[str]) -> Iterator[pa.RecordBatch | pa.Table]:
        if is_parquet(table):
            with naming(table), open_parquet(table) as file:
                yield from file.iter_batches(ROWS_AT_A_TIME, columns=columns)
        elif isinstance(table, pa.Table):
            yield from table.select(columns).to_batches(ROWS_AT_A_TIME)
        else:
            yield from table.select_columns(columns).with_format("arrow").iter(ROWS_AT_A_TIME)

    def row_of(self, table, index: int, record: dict) -> Row:
        where = f"{table if is_parquet(table) else self.name}, row {index}"
        image, label = self._content(record[self.image_column]), record[self.label_column]
        if isinstance(image, Path):
            where = str(image) if isinstance(self.tables[0], pa.Table) else f"{where} ({image})"
        if image is None:
            return Row(where, None, None, f"column {self.image_column!r} holds no image")
        if self.kind == "mask":
            label = self._content(label)
            if label is None:
                return Row(where, None, None, f"column {self.label_column!r} holds no mask")
        elif self.kind == "objects":
            try:
                label = read_objects(label)
            except ValueError as error:
                return Row(where, None, None, f"column {self.label_column!r}: {error}")
        return Row(where, image, label)

    def _content(self, cell: Any) -> bytes | Path | None:
        """Of a cell with an image: what the Hub's {bytes, path} has, bytes, or the path of a file."""
        if isinstance(cell, dict):
            cell = cell.get("path") if cell.get("bytes") is None else cell["bytes"]
        return self.root / cell if isinstance(cell, str) and cell else cell if isinstance(cell, bytes) else None


def read_objects(cell: Any) -> list[tuple[list[float], Any]]:
    """(box, category) of each object, from {bbox: [...], category: [...]}, [{bbox, category}, ...], or JSON of these.

    A cell without anything is an image without objects.
    """
    if isinstance(cell, str):
        try:
            cell = json.loads(cell) if cell.strip() else None
        except ValueError as error:
            raise ValueError(f"{cell[:60]!r} is not JSON: {error}") from error
    if not cell:
        return []
    if isinstance(cell, list):
        return [(pick(record, BOX_KEYS), pick(record, CATEGORY_KEYS)) for record in cell]
    boxes, categories = pick(cell, BOX_KEYS) or [], pick(cell, CATEGORY_KEYS) or []
    if len(boxes) != len(categories):
        raise ValueError(f"there are {len(boxes)} boxes and {len(categories)} categories")
    return list(zip(boxes, categories, strict=True))


def pick(record: Any, keys: tuple[str, ...]) -> Any:
    """The value of the one key that is there."""
    if not isinstance(record, dict):
        raise ValueError(f"objects must be {{'bbox': ..., 'category': ...}}, got {record!r}")
    for key in keys:
        if key in record:
            return record[key]
    raise ValueError(f"objects need one of {', '.join(keys)}, and have {', '.join(record)}")


def is_parquet(table) -> bool:
    return isinstance(table, Path | str)


def open_parquet(file: Path | str, metadata=None) -> pq.ParquetFile:
    """
    Args:
        file: a path, or an address that fsspec opens.
        metadata: what is at its end, if that was read before.
    """
    opened = file if isinstance(file, Path) else fsspec.open(file).open()
    return pq.ParquetFile(opened, metadata=metadata)


@contextmanager
def naming(file: Path | str):
    """Errors of pyarrow don't say which file is damaged."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        raise UnreadableData(f"{file} can't be read as parquet: {error}") from error
