"""Each form of data trains from the command line, and what comes of it loads in its pipeline."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from datasets import ClassLabel, Dataset, DatasetDict, Features
from datasets import Image as ImageFeature
from image_files import CLASSES, photo, write_folder, write_splits
from PIL import Image
from transformers import pipeline

from hf_efficient.cli import main as command

VIT = {
    "model_type": "kerformer_vit",
    **{"image_size": 16, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
}
MOBILE = {"model_type": "mobilevit_v2", "image_size": 64, "width_multiplier": 0.5, "n_attn_blocks": [1, 1, 1]}
LANGUAGE_MODEL = {
    "model_type": "compressive_performer",
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "segment_length": 16, "memory_length": 16},
}
MODELS = {
    "image-classification": VIT,
    "object-detection": MOBILE,
    "image-segmentation": {**MOBILE, "output_stride": 16, "aspp_out_channels": 8},
    "text-generation": LANGUAGE_MODEL,
}
SIZE = (31, 23)  # width and height of an image that no model has


@pytest.fixture(autouse=True)
def here(own_caches, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photo(1, SIZE).save("new.png")


def photos() -> list[Path]:
    """In folders of their classes, of mixed sizes."""
    return sorted(write_folder(Path("photos"), 16, lambda i: (20 + i, 30 - i)).glob("*/*.png"))


def folder():
    photos()
    return "photos"


def table_of_paths():
    lines = [f"{file},{file.parent.name}" for file in photos()]
    Path("photos.csv").write_text("\n".join(["file_name,label", *lines]))
    return "photos.csv"


def parquet_of_bytes():
    return str(write_splits(Path("tables"), 16))


def hub_folder():
    """As `push_to_hub` leaves it: a card, and images in parquet."""
    rows = {"image": [str(x.resolve()) for x in photos()], "label": [i // 8 for i in range(16)]}
    data = Dataset.from_dict(rows, Features({"image": ImageFeature(), "label": ClassLabel(names=CLASSES)}))
    for split, part in (("train", data), ("test", data.select(range(0, 16, 4)))):
        Path("hub/data").mkdir(parents=True, exist_ok=True)
        part.to_parquet(f"hub/data/{split}-00000-of-00001.parquet")
    Path("hub/README.md").write_text("---\nconfigs:\n- config_name: default\n---\n")
    return "hub"


def saved_to_disk():
    rows = {"picture": [str(x.resolve()) for x in photos()], "kind": [x.parent.name for x in photos()]}
    DatasetDict({"train": Dataset.from_dict(rows)}).save_to_disk("saved")
    return "saved"


def coco():
    """Images with 0, 1 and 2 boxes."""
    images = [{"id": i, "file_name": str(file)} for i, file in enumerate(photos())]
    boxes = [{"image_id": i, "category_id": 1 + j, "bbox": [2, 3, 9, 8]} for i in range(16) for j in range(i % 3)]
    names = [{"id": 1, "name": "head"}, {"id": 2, "name": "tail"}]
    Path("boxes.json").write_text(json.dumps({"images": images, "annotations": boxes, "categories": names}))
    return "boxes.json"


def masks():
    for name in ("images", "masks"):
        Path("scenes", name).mkdir(parents=True)
    for i in range(8):
        photo(i, (20 + i, 30)).save(f"scenes/images/{i}.jpg")
        Image.fromarray((np.indices((30, 20 + i))[0] > 16).astype(np.uint8)).save(f"scenes/masks/{i}.png")
    return "scenes"


def texts():
    Path("notes.jsonl").write_text(
        "\n".join(json.dumps({"text": f"This is note {i}, one of many."}) for i in range(60))
    )
    return "notes.jsonl"


@pytest.mark.parametrize(
    ("task", "data", "words"),
    [
        ("image-classification", folder, []),
        ("image-classification", table_of_paths, []),
        ("image-classification", parquet_of_bytes, []),
        ("image-classification", hub_folder, []),
        ("image-classification", saved_to_disk, ["--image_column", "picture", "--label_column", "kind"]),
        ("image-classification", parquet_of_bytes, ["--streaming", "true"]),
        ("object-detection", coco, []),
        ("object-detection", coco, ["--streaming", "true"]),
        ("image-segmentation", masks, []),
        ("image-segmentation", masks, ["--streaming", "true", "--class_names", "[sky, road]"]),
        ("text-generation", texts, []),
    ],
)
def test_it_trains_and_its_pipeline_loads(task, data, words):
    training = {"max_steps": 2, "per_device_train_batch_size": 4, "eval_strategy": "no", "output_dir": "out"}
    sections = {"task": task, "dataset": data(), "model": MODELS[task], "training": training}
    Path("run.yaml").write_text(yaml.safe_dump({**sections, "energy": {"enabled": False}}))
    assert command(["train", "run.yaml", *words]) == 0
    use = pipeline(task, model="out")
    if task == "text-generation":
        assert use("This is", max_new_tokens=2)[0]["generated_text"].startswith("This is")
        return
    found = use("new.png", threshold=0.0) if task == "object-detection" else use("new.png")
    names = {"object-detection": {"head", "tail"}, "image-segmentation": {"0", "1", "sky", "road"}}
    assert found and {x["label"] for x in found} <= names.get(task, set(CLASSES))
    if task == "image-segmentation":
        assert all(x["mask"].size == SIZE for x in found)
