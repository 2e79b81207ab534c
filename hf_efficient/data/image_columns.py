"""Which columns of a table hold the image and its label, and what the classes are called."""

from typing import Any, NamedTuple

import pyarrow as pa

from .image_sources import BOX_KEYS, CATEGORY_KEYS

USUAL = {
    "image": ("img", "image", "file_name", "filename", "image_path", "path", "file"),
    "label": ("label", "fine_label", "labels", "class", "category", "target"),
    "objects": ("objects", "annotations"),
    "mask": ("mask", "masks", "annotation", "segmentation_mask", "label"),
}


class Columns(NamedTuple):
    image: str
    label: str
    class_names: list[str] | None  # where the schema has them


def find_columns(
    schema: pa.Schema, where: str, kind: str, image_column: str | None = None, label_column: str | None = None
) -> Columns:
    """
    Args:
        kind: of the labels: label, objects or mask.
        image_column, label_column: as they were given; by default those with usual names are found, or else the only
            one of that type.
    """
    from datasets import ClassLabel, Features

    features = Features.from_arrow_schema(schema)
    pictures = [field.name for field in schema if holds_pictures(field.type)]
    image = pick_column(schema.names, where, "image", image_column, pictures)
    if kind == "mask":
        typed = [name for name in pictures if name != image]
    else:
        typed = [name for name, x in features.items() if isinstance(x, ClassLabel)] if kind == "label" else []
    others = [name for name in schema.names if name != image]
    label = pick_column(others, where, kind, label_column, typed)
    return Columns(image, label, names_of_classes(features[label]))


def pick_column(columns: list[str], where: str, kind: str, asked: str | None, typed: list[str]) -> str:
    setting = "image_column" if kind == "image" else "label_column"
    listed = f"its columns are {', '.join(columns)}; set {setting}."
    if asked:
        if asked in columns:
            return asked
        raise ValueError(f"{where} has no column {asked!r}: {listed}")
    found = [name for name in USUAL[kind] if name in columns]
    found = [name for name in found if name in typed] or found or typed
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{where} has several columns that may be the {kind}: {', '.join(found)}; set {setting}.")
    raise ValueError(f"{where} has no column {' or '.join(map(repr, USUAL[kind]))}: {listed}")


def holds_pictures(kind: pa.DataType) -> bool:
    """{bytes, path}, as `datasets` stores images"""
    return pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0


def names_of_classes(feature: Any) -> list[str] | None:
    """Of a ClassLabel, or of the categories of objects."""
    from datasets import ClassLabel

    if isinstance(feature, ClassLabel):
        return feature.names
    if isinstance(feature, list):  # how `datasets` once wrote lists
        feature = feature[0]
    elif hasattr(feature, "feature"):
        feature = feature.feature
    if isinstance(feature, dict) and any(key in feature for key in BOX_KEYS):
        category = next((feature[key] for key in CATEGORY_KEYS if key in feature), None)
        category = getattr(category, "feature", category)
        return category.names if isinstance(category, ClassLabel) else None
    return None
