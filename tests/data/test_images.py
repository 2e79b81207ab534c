"""Every mode of image becomes the RGB image it shows, or an error that says why not."""

import numpy as np
import pytest
from PIL import Image

from hf_efficient.data.images import to_rgb

PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8))
GREY = PHOTO.convert("L")


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "CMYK", "L", "LA", "1", "P"])
def test_ordinary_modes(mode):
    image = PHOTO.convert(mode)
    assert np.array_equal(np.asarray(to_rgb(image)), np.asarray(image.convert("RGB")))
    if mode in ("RGB", "RGBA", "CMYK"):
        assert np.array_equal(np.asarray(to_rgb(image)), np.asarray(PHOTO))


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
    with pytest.raises(ValueError, match=f"mode '{mode}' have no fixed range"):
        to_rgb(GREY.convert(mode))
