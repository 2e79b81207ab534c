"""Tiny runs for the tests of tasks and of evaluation, written into the current folder."""

import json
from pathlib import Path

import torch
import yaml
from PIL import Image

from hf_efficient.data.image_sets import ImageSet
from hf_efficient.data.objects import Objects

MODEL = {
    "model_type": "hugginggreen_vit",
    **{"image_size": 8, "patch_size": 2, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
}
QUICK = {"num_train_epochs": 1, "per_device_train_batch_size": 20, "learning_rate": 3e-3}
STAGES = {
    "masked": {"task": "masked-image-modeling"},
    "contrastive": {"task": "contrastive-learning", "training": {"images_per_class": 4}},
    "finetune": {"task": "image-classification", "model": {"freeze_backbone": True}},
}


def write(name: str, **sections) -> str:
    sections = {
        "dataset": {"name": "digits", "limit": 200, "evaluation_limit": 60},
        "energy": {"enabled": False},
        **sections,
        "model": {**MODEL, **sections.get("model", {})},
        "training": {**QUICK, **sections.get("training", {})},
    }
    Path(f"{name}.yaml").write_text(yaml.safe_dump(sections))
    return f"{name}.yaml"


def write_coco(folder: Path, count: int, spoilt: bool = False) -> None:
    """annotations.json and images of mixed sizes, the i-th with i objects; if `spoilt`, a box has no area."""
    (folder / "images").mkdir(parents=True)
    images, annotations = [], []
    for i in range(count):
        Image.new("RGB", (16 + i, 12), (20 * i, 100, 50)).save(folder / "images" / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png"})
        annotations += [{"image_id": i, "category_id": j % 2, "bbox": [j, 1, 4, 5]} for j in range(i)]
    if spoilt:
        annotations[-1]["bbox"][2] = 0
    categories = [{"id": 0, "name": "red"}, {"id": 1, "name": "white"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations.json").write_text(json.dumps(content))


def boxed(count: int) -> ImageSet:
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(0, 255, (count, 3, 8, 8), generator=generator, dtype=torch.uint8)
    boxes = torch.rand(count, 4, generator=generator) / 2 + 0.2
    return ImageSet(pixels, Objects.one_each(torch.arange(count) % 2, boxes, (8, 8)), ["cat", "dog"])
