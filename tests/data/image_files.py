"""Small images in tables and folders, for the tests of data."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

CLASSES = ["cat", "dog"]


def photo(seed: int, size=(8, 8), mode="RGB") -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def as_bytes(image: Image.Image, format: str = "PNG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, format)
    return stream.getvalue()


def write_table(
    file: Path, images: list, labels: list, names=CLASSES, image="image", label="label", **columns
) -> Path:
    """As the Hub has them: bytes in a struct, the names of classes in the metadata."""
    images = [x if x is None or isinstance(x, bytes) else as_bytes(x) for x in images]
    structs = [None if x is None else {"bytes": x, "path": None} for x in images]
    table = pa.table({image: structs, label: labels, **columns})
    if names:
        features = {image: {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file)
    return file


def write_splits(folder: Path, count: int = 8, **options) -> Path:
    for split, start in (("train", 0), ("test", 100)):
        images = [photo(start + i) for i in range(count)]
        write_table(folder / f"{split}-00000-of-00001.parquet", images, [i % 2 for i in range(count)], **options)
    return folder


def write_folder(folder: Path, count: int = 8, size=lambda i: (8, 8)) -> Path:
    for i in range(count):
        file = folder / CLASSES[i % 2] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        photo(i, size(i)).save(file)
    return folder


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
