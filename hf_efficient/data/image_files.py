"""Labelled images in files and on the Hub: which splits are there, each as a `Source` of rows.

parquet                         bytes or paths of images; a file, or a folder of them
csv, tsv, jsonl, json           paths of images, with their labels, objects or masks; `metadata.csv` among images
COCO's json                     `images`, `annotations` and `categories`
save_to_disk                    of `datasets`
<path>/[split/]<class>/<image>  images in folders of classes
<path>/[split/]images, masks    images, and masks of the same names
<owner>/<name>                  of the Hub, or of the cache of `datasets` if there is no network
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from .coco_files import is_coco, read_coco
from .image_columns import Columns, find_columns
from .image_sources import Source, naming, open_parquet
from .saved_data import saved_splits
from .split_names import SPLIT_NAMES, split_of
from .terminal_bars import bars_on_terminals

BUILDERS = {".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".ndjson": "json", ".json": "json"}
IMAGE_FOLDERS = ("images", "image", "img", "imgs", "JPEGImages")
MASK_FOLDERS = ("masks", "mask", "annotations", "labels", "SegmentationClass")
LAYOUTS = {
    "label": "<class>/<image>.png",
    "objects": "a COCO json, or metadata.jsonl with the keys file_name and objects",
    "mask": "images/<name>.png and masks/<name>.png",
}


@dataclass(frozen=True)
class Finder:
    """
    Args:
        kind: of the labels: label, objects or mask.
        image_column, label_column: of tables; by default found.
        image_folder: where relative paths of images begin; by default beside the file that has them.
        subset: of a repository on the Hub.
        streaming: read the Hub's parquet files where they are, instead of a copy.
    """

    kind: str = "label"
    image_column: str | None = None
    label_column: str | None = None
    image_folder: str | None = None
    subset: str | None = None
    streaming: bool = False

    def find(self, path: Path) -> dict[str, Source]:
        """The splits in a file or folder."""
        if path.is_file():
            return self.in_files([path], path.parent)
        if (saved := saved_splits(path)) is not None:
            return {x: self.of_dataset(f"{path} {x}", part, [part._fingerprint], path) for x, part in saved.items()}
        tables = sorted(path.rglob("*.parquet"))
        tables = tables or [file for file in sorted(path.rglob("*.json")) if is_coco(file)]
        tables = tables or sorted(file for file in path.rglob("metadata.*") if file.suffix in BUILDERS)
        tables = tables or sorted(file for file in path.glob("*") if file.suffix in BUILDERS)
        if tables:
            return self.in_files(tables, path)
        return self.masks_in_folders(path) if self.kind == "mask" else self.images_in_folders(path)

    # ---- tables ----

    def in_files(self, files: list[Path], root: Path) -> dict[str, Source]:
        groups: dict[str, list[Path]] = {}
        for file in files:
            groups.setdefault(split_of(file, root), []).append(file)
        return {split: self.of_files(split, group) for split, group in groups.items()}

    def of_files(self, split: str, files: list[Path]) -> Source:
        suffix = files[0].suffix
        if suffix == ".parquet":
            with naming(files[0]):
                schema = pq.read_schema(files[0])
            columns = self.columns(schema, str(files[0]))
            return self.source(split, files, columns, [fingerprint(file) for file in files], files[0].parent)
        if suffix not in BUILDERS:
            known = ", ".join((".parquet", *BUILDERS))
            raise ValueError(f"{files[0]} must be one of {known}, or a folder of them or of images.")
        if suffix == ".json" and is_coco(files[0]):
            return self.coco(split, files)
        options = {"sep": "\t"} if suffix == ".tsv" else {}
        dataset = read_with_datasets(BUILDERS[suffix], files, **options)
        name = str(files[0]) if len(files) == 1 else split
        return self.of_dataset(name, dataset, [fingerprint(file) for file in files], files[0].parent)

    def coco(self, split: str, files: list[Path]) -> Source:
        files = [file for file in files if file.stem.startswith("instances")] or files
        if len(files) > 1:
            raise ValueError(f"{split} has several COCO files: {', '.join(map(str, files))}; name one of them.")
        if self.kind != "objects":
            raise ValueError(f"{files[0]} is a COCO file of boxes: they are for task: object-detection.")
        table, names, skipped = read_coco(files[0], self.image_folder and Path(self.image_folder).expanduser())
        source = self.source(str(files[0]), [table], Columns("image", "objects", names), [fingerprint(files[0])])
        source.skipped.extend(skipped)
        return source

    def of_dataset(self, name: str, dataset, identity: list, root: Path = Path()) -> Source:
        """Of a `datasets.Dataset`."""
        from datasets import Image as ImageFeature

        for column, feature in dataset.features.items():
            if isinstance(feature, ImageFeature):
                dataset = dataset.cast_column(column, ImageFeature(decode=False))
        columns = self.columns(dataset.features.arrow_schema, name)
        return self.source(name, [dataset], columns, identity, root)

    def on_hub(self, repository: str) -> dict[str, Source]:
        from datasets import load_dataset, load_dataset_builder

        if self.streaming:
            builder = load_dataset_builder(repository, self.subset)
            return {split: self.at_addresses(split, files) for split, files in builder.config.data_files.items()}
        with bars_on_terminals():
            splits = load_dataset(repository, self.subset)
        return {name: self.of_dataset(f"{repository} {name}", x, [x._fingerprint]) for name, x in splits.items()}

    def at_addresses(self, split: str, files: list[str]) -> Source:
        """Of parquet files that fsspec opens."""
        if not files[0].endswith(".parquet"):
            raise ValueError(f"streaming=True needs parquet files, got {files[0]}: set streaming to false.")
        with naming(files[0]), open_parquet(files[0]) as file:
            columns = self.columns(file.schema_arrow, files[0])
        return self.source(split, [*map(str, files)], columns, files)

    # ---- folders ----

    def images_in_folders(self, path: Path) -> dict[str, Source]:
        """<path>/<split>/<class>/<image>, or <path>/<class>/<image>, which is all "train"."""
        return {split: self.classes(split, folder) for split, folder in split_folders(path).items()}

    def classes(self, split: str, folder: Path) -> Source:
        files = images_in(folder, "*/*") if self.kind == "label" else []
        if not files:
            raise ValueError(f"{folder} has no images that could be used: it should hold {LAYOUTS[self.kind]}.")
        labels = [file.parent.name for file in files]
        return self.source(split, [as_table(files, "label", labels)], Columns("image", "label", sorted(set(labels))))

    def masks_in_folders(self, path: Path) -> dict[str, Source]:
        """images and masks in the folder of each split, or a folder for each split in images and in masks."""
        splits = {}
        for split, folder in split_folders(path).items():
            images, masks = (first_folder(folder, names) for names in (IMAGE_FOLDERS, MASK_FOLDERS))
            if images is None or masks is None:
                raise ValueError(f"{folder} should hold {LAYOUTS['mask']}.")
            inner = split_folders(images)
            if inner == {"train": images}:
                splits[split] = self.masks(split, images, masks)
            else:
                splits |= {name: self.masks(name, x, masks / x.name) for name, x in inner.items()}
        return splits

    def masks(self, split: str, images: Path, masks: Path) -> Source:
        files = images_in(images, "**/*")
        if not files:
            raise ValueError(f"{images} has no images.")
        known = {file.relative_to(masks).with_suffix(""): str(file) for file in images_in(masks, "**/*")}
        stems = [file.relative_to(images).with_suffix("") for file in files]
        usual = [str(masks / stem) + ".png" for stem in stems]  # what errors call those that are missing
        found = [
            known.get(stem) or known.get(stem.with_name(f"{stem.name}_mask"), missing)
            for stem, missing in zip(stems, usual, strict=True)
        ]
        return self.source(split, [as_table(files, "mask", found)], Columns("image", "mask", None))

    # ---- both ----

    def columns(self, schema: pa.Schema, where: str) -> Columns:
        return find_columns(schema, where, self.kind, self.image_column, self.label_column)

    def source(self, name, tables: list, columns: Columns, identity: Iterable = (), root: Path = Path()) -> Source:
        made_here = isinstance(tables[0], pa.Table)  # of whole paths
        if self.image_folder and not made_here:
            root = Path(self.image_folder).expanduser()
        named = [columns.image, columns.label] if self.kind == "mask" else [columns.image]
        files = [fingerprint(file) for file in files_in(tables, named, root)]
        identity = [self.kind, *identity, columns.image, columns.label, files]
        return Source(
            name, identity, tables, columns.image, columns.label, self.kind, columns.class_names, made_here, root
        )


def read_with_datasets(builder: str, files: list[Path], **options):
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        with bars_on_terminals():
            return load_dataset(builder, data_files=[str(file) for file in files], split="train", **options)
    except (DatasetsError, ValueError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise ValueError(f"{files[0]} can't be read as {builder}: {reason}") from error


def files_in(tables: list, columns: list[str], root: Path) -> Iterable[Path]:
    """The files that cells of text name: when they change, so have the data."""
    for table in tables:
        if isinstance(table, str):
            continue  # what is elsewhere holds bytes
        if isinstance(table, Path):
            table = text_columns(table, columns)
        schema = table.schema if isinstance(table, pa.Table) else table.features.arrow_schema
        for column in columns:
            if column in schema.names and is_text(schema.field(column).type):
                cells = table.column(column).to_pylist() if isinstance(table, pa.Table) else table[column]
                yield from (root / cell for cell in cells if cell)


def text_columns(file: Path, columns: list[str]) -> pa.Table:
    """Those of a parquet file that are text."""
    with naming(file):
        schema = pq.read_schema(file)
        return pq.read_table(file, columns=[x for x in columns if is_text(schema.field(x).type)])


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def as_table(images: list[Path], column: str, labels: list) -> pa.Table:
    return pa.table({"image": [str(file) for file in images], column: labels})


def images_in(folder: Path, pattern: str) -> list[Path]:
    known = set(Image.registered_extensions())
    return sorted(file for file in folder.glob(pattern) if file.suffix.lower() in known and not file.is_dir())


def split_folders(path: Path) -> dict[str, Path]:
    """The folders in a folder that are named as splits; else it is all "train"."""
    found = {x.name.lower(): x for x in sorted(path.iterdir()) if x.is_dir() and x.name.lower() in SPLIT_NAMES}
    return found or {"train": path}


def first_folder(path: Path, names: tuple[str, ...]) -> Path | None:
    return next((path / name for name in names if (path / name).is_dir()), None)


def fingerprint(file: Path) -> list:
    try:
        status = file.stat() if file.exists() else file.lstat()  # a link to nothing is named when it is opened
    except OSError:
        return [str(file)]  # a missing file too
    return [str(file.resolve()), status.st_size, status.st_mtime_ns]
