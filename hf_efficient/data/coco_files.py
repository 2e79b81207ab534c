"""COCO's annotation files: JSON with `images`, `annotations` (boxes as x, y, width, height) and `categories`."""

import json
from collections import defaultdict
from pathlib import Path

import pyarrow as pa

KEYS = ("images", "annotations", "categories")
NEEDED = {
    "images": {"id": int | str, "file_name": str},
    "annotations": {"image_id": int | str, "category_id": int | str},
    "categories": {"id": int | str, "name": str},
}
HEAD = 1 << 16  # bytes in which one of the keys must come
BOXES = pa.list_(pa.struct({"bbox": pa.list_(pa.float64()), "category": pa.string()}))


def is_coco(file: Path) -> bool:
    """By its beginning; other files of JSON are rows."""
    with open(file, "rb") as opened:
        head = opened.read(HEAD).lstrip()
    return head.startswith(b"{") and any(f'"{key}"'.encode() in head for key in KEYS)


def read_coco(file: Path, image_folder: Path | None = None) -> tuple[pa.Table, list[str], list[str]]:
    """A table of paths and objects, the names of the classes, and what was left out.

    Boxes of crowds are left out: they stand for many objects.
    """
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    for key in KEYS:
        if not isinstance(content.get(key), list):
            raise ValueError(f"{file} has no list {key!r}: COCO's files have {', '.join(KEYS)}.")
        check_records(file, key, content[key])
    names = {category["id"]: category["name"] for category in sorted(content["categories"], key=by_id)}
    images = {image["id"]: image for image in content["images"]}
    if len(images) < len(content["images"]):
        raise ValueError(f"{file}: images have the same id twice.")
    if len(set(names.values())) < len(content["categories"]):
        raise ValueError(f"{file}: categories have the same name or id twice.")
    objects, crowds = defaultdict(list), 0
    for index, annotation in enumerate(content["annotations"]):
        if annotation.get("iscrowd"):
            crowds += 1
            continue
        for key, known in (("image_id", images), ("category_id", names)):
            if annotation.get(key) not in known:
                raise ValueError(f"{file}: annotations[{index}].{key}={annotation.get(key)!r} is none that it lists.")
        box = annotation.get("bbox")
        if not isinstance(box, list) or not all(isinstance(x, int | float) for x in box):
            raise ValueError(f"{file}: annotations[{index}].bbox={box!r} must be four numbers.")
        found = {"bbox": box, "category": names[annotation["category_id"]]}
        objects[annotation["image_id"]].append(found)
    folder = image_folder or find_images(file, content["images"])
    paths = [str(folder / image["file_name"]) for image in content["images"]]
    boxes = pa.array([objects[image["id"]] for image in content["images"]], BOXES)
    skipped = [f"{file}: {crowds} boxes of crowds"] if crowds else []
    return pa.table({"image": paths, "objects": boxes}), list(names.values()), skipped


def check_records(file: Path, name: str, records: list) -> None:
    """Raises for what has not the keys of its list."""
    for index, record in enumerate(records):
        if not isinstance(record, dict):
            raise ValueError(f"{file}: {name}[{index}]={record!r} must be an object with keys.")
        for key, kind in NEEDED[name].items():
            if not isinstance(record.get(key), kind):
                wanted = "text" if kind is str else "a number"
                raise ValueError(f"{file}: {name}[{index}].{key}={record.get(key)!r} must be {wanted}.")


def by_id(record: dict) -> tuple[bool, int | str]:
    return isinstance(record["id"], str), record["id"]


def find_images(file: Path, images: list[dict]) -> Path:
    """Where the first image is: beside the file or near it."""
    if not images:
        raise ValueError(f"{file} has no images.")
    near = [file.parent, file.parent.parent]
    words = file.stem.rsplit("_", 1)[-1]  # instances_train2017
    places = [folder / inner for folder in near for inner in ("", "images", words, f"images/{words}")]
    for place in places:
        if (place / images[0]["file_name"]).is_file():
            return place
    looked = ", ".join(str(place) for place in places)
    raise ValueError(
        f"{file}: images[0].file_name={images[0]['file_name']!r} is in none of {looked}: set image_folder."
    )
