"""Tiny runs for the tests of tasks and of evaluation, written into the current folder."""

from pathlib import Path

import torch
import yaml

from hf_efficient.data.image_sets import ImageSet

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


def boxed(count: int) -> ImageSet:
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(0, 255, (count, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return ImageSet(
        pixels, torch.arange(count) % 2, ["cat", "dog"], torch.rand(count, 4, generator=generator) / 2 + 0.2
    )
