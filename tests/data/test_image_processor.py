"""The image processor that belongs to a model's config."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor

from hf_efficient import KerformerViTConfig, image_processor_for

CONFIG = KerformerViTConfig(image_size=32, patch_size=8)
PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8))


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "CMYK", "P", "1"])
def test_every_mode_is_seen_as_the_picture_it_shows(mode):
    processor = image_processor_for(CONFIG)
    image = PHOTO.convert(mode)
    expected = processor(image.convert("RGB"), return_tensors="pt")["pixel_values"]
    assert torch.equal(processor(image, return_tensors="pt")["pixel_values"], expected)


@pytest.mark.parametrize("task", ["image-classification", "object-detection", "image-segmentation"])
def test_what_has_no_pixels_or_too_many_bits(task):
    processor = image_processor_for(CONFIG, task)
    with pytest.raises(ValueError, match="0x0 pixels"):
        processor(Image.new("RGB", (0, 0)), return_tensors="pt")
    grey = PHOTO.convert("L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    expected = processor(grey, return_tensors="pt")["pixel_values"]
    assert torch.equal(processor(deep, return_tensors="pt")["pixel_values"], expected)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("image-classification", "ViTImageProcessor"),
        ("object-detection", "DetrImageProcessor"),
        ("image-segmentation", "SegformerImageProcessor"),
    ],
)
def test_what_is_saved_is_transformers_own(task, name, tmp_path):
    processor = image_processor_for(CONFIG, task)
    processor.save_pretrained(tmp_path)
    again = AutoImageProcessor.from_pretrained(tmp_path)
    assert type(again).__name__ == f"{name}Pil" and type(again).__module__.startswith("transformers.")
    for images in (PHOTO, [PHOTO, PHOTO.resize((5, 9))]):
        ours, theirs = (p(images, return_tensors="pt")["pixel_values"] for p in (processor, again))
        assert torch.equal(ours, theirs)


def test_an_unknown_task_is_named():
    with pytest.raises(ValueError, match="unknown task 'poetry'; known: image-classification"):
        image_processor_for(CONFIG, "poetry")
