"""Every mode of image becomes the RGB image it shows, or an error that says why not."""

import numpy as np
import pytest
from PIL import Image
from transformers import AutoImageProcessor

from hf_efficient import KerformerViTConfig, image_processor_for
from hf_efficient.data.folders import CACHE_FOLDER
from hf_efficient.data.image_sets import load_images
from hf_efficient.data.images import open_rgb, to_rgb

PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8))
GREY = PHOTO.convert("L")


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "CMYK", "L", "LA", "1", "P"])
def test_ordinary_modes(mode):
    image = PHOTO.convert(mode)
    assert np.array_equal(np.asarray(to_rgb(image)), np.asarray(image.convert("RGB")))
    if mode in ("RGB", "RGBA", "CMYK"):
        assert np.array_equal(np.asarray(to_rgb(image)), np.asarray(PHOTO))


def see_through(mode: str) -> Image.Image:
    """A picture with transparent parts; of modes without a channel for them, one colour is."""
    image = PHOTO.copy()
    image.putalpha(Image.fromarray(np.arange(480, dtype=np.uint16).reshape(20, 24).astype(np.uint8)))
    if mode in ("P", "L", "RGB"):
        image = PHOTO.convert(mode)
        image.info["transparency"] = tuple(PHOTO.getpixel((0, 0))) if mode == "RGB" else image.getpixel((0, 0))
    return image if image.mode == mode else image.convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P", "L", "RGB"])
def test_what_is_transparent_is_white_in_training_and_prediction(mode, tmp_path):
    image = see_through(mode)
    seen = np.asarray(to_rgb(image))
    white = np.asarray(Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA")))
    assert np.array_equal(seen, white[..., :3]) and (seen[0, 0] == 255).all()
    processor = image_processor_for(KerformerViTConfig(image_size=8, patch_size=4))
    processor.save_pretrained(tmp_path)
    for each in (processor, AutoImageProcessor.from_pretrained(tmp_path)):
        pixels, expected = (each(x, return_tensors="np")["pixel_values"] for x in (image, Image.fromarray(seen)))
        assert np.array_equal(pixels, expected)


def test_training_and_prediction_read_the_same_pixels(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "cache"))
    for name in ("a", "b"):
        for number in range(4):
            (tmp_path / "images" / name).mkdir(parents=True, exist_ok=True)
            see_through("RGBA").save(tmp_path / "images" / name / f"{number}.png")
    expected = np.asarray(open_rgb(tmp_path / "images" / "a" / "0.png"))
    assert np.array_equal(expected, np.asarray(to_rgb(see_through("RGBA"))))
    pixels = load_images(tmp_path / "images").train.pixels
    assert (pixels.permute(0, 2, 3, 1).numpy() == expected).all()


@pytest.mark.parametrize("mode", ["I;16", "I;16B"])
def test_sixteen_bit_grey_is_scaled_and_not_clipped(mode):
    values = np.asarray(GREY).astype(np.uint16) * 257
    image = Image.fromarray(values)
    if mode == "I;16B":
        image = Image.frombytes(mode, image.size, values.astype(">u2").tobytes())
    assert image.mode == mode
    assert np.array_equal(np.asarray(to_rgb(image))[..., 0], np.asarray(GREY))


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1)])
def test_thin_images_are_images(size):
    assert to_rgb(PHOTO.resize(size)).size == size


@pytest.mark.parametrize("size", [(0, 0), (0, 5), (5, 0)])
def test_images_without_pixels_are_refused(size):
    with pytest.raises(ValueError, match=f"{size[0]}x{size[1]} pixels"):
        to_rgb(Image.new("RGB", size))


@pytest.mark.parametrize("mode", ["F", "I"])
def test_modes_without_a_range_are_refused(mode):
    processor = image_processor_for(KerformerViTConfig(image_size=8, patch_size=4))
    for look in (to_rgb, processor):
        with pytest.raises(ValueError, match=f"mode '{mode}' have no fixed range"):
            look(GREY.convert(mode))
