"""Where labelled images come from: parquet files, folders of images, the Hub. Each split is a source of rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from .split_names import SPLIT_NAMES, split_of

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label")
OBJECTS_COLUMN = "objects"  # {"bbox": [[x0, y0, x1, y1]], ...} in pixels, both ends inclusive, as in Tiny ImageNet
ROWS_AT_A_TIME = 256


class Row(NamedTuple):
    """One image, not yet decoded; `fault` says why there is none."""

    where: str
    image: bytes | Path | None
    label: Any
    bbox: list[float] | None = None
    fault: str | None = None


@dataclass(frozen=True)
class Source:
    """One split.

    Attributes:
        name: what errors call it.
        identity: changes when the data do; JSON-serialisable.
        class_names: by label; None where the data don't say.
    """

    name: str
    identity: list
    class_names: list[str] | None

    def __len__(self) -> int:
        raise NotImplementedError

    def rows(self) -> Iterator[Row]:
        raise NotImplementedError

    def labels(self) -> list:
        """All labels as they stand there, without the images."""
        raise NotImplementedError


@dataclass(frozen=True)
class FolderSource(Source):
    """<folder>/<class>/<image>"""

    files: list[Path]

    def __len__(self) -> int:
        return len(self.files)

    def rows(self) -> Iterator[Row]:
        for file in self.files:
            yield Row(str(file), file, file.parent.name)

    def labels(self) -> list:
        return [file.parent.name for file in self.files]


@dataclass(frozen=True)
class TableSource(Source):
    """Rows of Arrow tables: of parquet files, or of a `datasets.Dataset`."""

    tables: Any  # list of files, or the dataset
    image_column: str
    label_column: str
    has_objects: bool

    def __len__(self) -> int:
        return sum(self._length(table) for table in self._tables())

    def rows(self) -> Iterator[Row]:
        columns = [self.image_column, self.label_column, *([OBJECTS_COLUMN] if self.has_objects else [])]
        for table in self._tables():
            index = 0
            for batch in self._batches(table, columns):
                for record in batch.to_pylist():
                    yield self._row(f"{self._where(table)}, row {index}", record)
                    index += 1

    def labels(self) -> list:
        found = []
        for table in self._tables():
            for batch in self._batches(table, [self.label_column]):
                found += batch.column(self.label_column).to_pylist()
        return found

    def _tables(self) -> list:
        return self.tables if isinstance(self.tables, list) else [self.tables]

    def _where(self, table) -> str:
        return str(table) if isinstance(table, Path) else self.name

    def _length(self, table) -> int:
        if not isinstance(table, Path):
            return len(table)
        with naming(table):
            return pq.ParquetFile(table).metadata.num_rows

    def _batches(self, table, columns: list[str]) -> Iterator[pa.RecordBatch | pa.Table]:
        if isinstance(table, Path):
            with naming(table), pq.ParquetFile(table) as file:
                yield from file.iter_batches(ROWS_AT_A_TIME, columns=columns)
        else:
            yield from table.select_columns(columns).with_format("arrow").iter(ROWS_AT_A_TIME)

    def _row(self, where: str, record: dict) -> Row:
        image, label = record[self.image_column], record[self.label_column]
        content = image.get("bytes") if isinstance(image, dict) else image
        if content is None and isinstance(image, dict) and image.get("path"):
            content = Path(image["path"])
        fault = None if isinstance(content, bytes | Path) else f"column {self.image_column!r} holds no image"
        boxes = (record.get(OBJECTS_COLUMN) or {}).get("bbox") or []
        return Row(where, content, label, boxes[0] if len(boxes) == 1 else None, fault)


@contextmanager
def naming(file: Path):
    """Errors of pyarrow don't say which file is damaged."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        raise ValueError(f"{file} can't be read as parquet: {error}") from error


def find_splits(path: Path, image_column: str | None = None, label_column: str | None = None) -> dict[str, Source]:
    """The splits in a parquet file, in a folder of them, or in a folder of images."""
    if path.is_file():
        if path.suffix != ".parquet":
            raise ValueError(f"{path} must be a .parquet file, or a folder of them or of images.")
        return parquet_splits([path], path.parent, image_column, label_column)
    if files := sorted(path.rglob("*.parquet")):
        return parquet_splits(files, path, image_column, label_column)
    return folder_splits(path)


def parquet_splits(files: list[Path], root: Path, image_column=None, label_column=None) -> dict[str, Source]:
    groups: dict[str, list[Path]] = {}
    for file in files:
        groups.setdefault(split_of(file, root), []).append(file)
    splits = {}
    for split, group in groups.items():
        with naming(group[0]):
            schema = pq.read_schema(group[0])
        names = columns_and_classes(schema, str(group[0]), image_column, label_column)
        identity = [[fingerprint(file) for file in group], names["image_column"], names["label_column"]]
        splits[split] = TableSource(split, identity, names.pop("classes"), group, **names)
    return splits


def hub_splits(repository: str, image_column=None, label_column=None) -> dict[str, Source]:
    """The splits of a dataset on the Hub, or in the cache of `datasets` if there is no network."""
    from datasets import Image as ImageFeature
    from datasets import load_dataset

    splits = {}
    for split, dataset in load_dataset(repository).items():
        for column, feature in dataset.features.items():
            if isinstance(feature, ImageFeature):
                dataset = dataset.cast_column(column, ImageFeature(decode=False))
        names = columns_and_classes(dataset.features.arrow_schema, f"{repository} {split}", image_column, label_column)
        identity = [dataset._fingerprint, names["image_column"], names["label_column"]]
        splits[split] = TableSource(f"{repository} {split}", identity, names.pop("classes"), dataset, **names)
    return splits


def folder_splits(path: Path) -> dict[str, Source]:
    """<path>/<split>/<class>/<image>, or <path>/<class>/<image>, which is all "train"."""
    folders = {folder.name: folder for folder in sorted(path.iterdir()) if folder.is_dir()}
    splits = {name: folder for name, folder in folders.items() if name.lower() in SPLIT_NAMES} or {"train": path}
    return {name.lower(): folder_source(name, folder) for name, folder in splits.items()}


def folder_source(name: str, folder: Path) -> FolderSource:
    known = set(Image.registered_extensions())
    files = sorted(file for file in folder.glob("*/*") if file.suffix.lower() in known and not file.is_dir())
    if not files:
        raise ValueError(f"{folder} has no images: they should be named {folder / '<class>' / '<image>.png'}.")
    classes = sorted({file.parent.name for file in files})
    return FolderSource(name, [fingerprint(file) for file in files], classes, files)


def columns_and_classes(schema: pa.Schema, where: str, image_column=None, label_column=None) -> dict:
    """Which columns hold what, and the names of the classes if the schema has them."""
    from datasets import ClassLabel, Features

    label = pick_column(schema.names, where, "label", label_column, LABEL_COLUMNS)
    feature = Features.from_arrow_schema(schema)[label]
    return {
        "image_column": pick_column(schema.names, where, "image", image_column, IMAGE_COLUMNS),
        "label_column": label,
        "has_objects": OBJECTS_COLUMN in schema.names and pa.types.is_struct(schema.field(OBJECTS_COLUMN).type),
        "classes": feature.names if isinstance(feature, ClassLabel) else None,
    }


def pick_column(columns: list[str], where: str, kind: str, asked: str | None, usual: tuple[str, ...]) -> str:
    for name in [asked] if asked else usual:
        if name in columns:
            return name
    wanted = repr(asked) if asked else " or ".join(map(repr, usual))
    raise ValueError(f"{where} has no column {wanted}: its columns are {', '.join(columns)}; set {kind}_column.")


def fingerprint(file: Path) -> list:
    status = file.stat() if file.exists() else file.lstat()  # a link to nothing is named when it is opened
    return [str(file.resolve()), status.st_size, status.st_mtime_ns]
