"""Converts images to 8-bit RGB, as models expect them: the one rule for training, evaluation and prediction."""

from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

CONVERTIBLE = ("RGB", "RGBA", "RGBX", "RGBa", "L", "LA", "La", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "1")


def to_rgb(image: Image.Image) -> Image.Image:
    """The image as 8-bit RGB, from any mode that has one meaning.

    16-bit grey is scaled to 8 bits; `Image.convert` clips it, which turns most of such an image white. What is
    transparent shows white, as in transformers' image processors; `Image.convert` shows colours that nobody has seen.
    An image without pixels is an error: without it, a model would classify it all the same.
    """
    if 0 in image.size:
        raise ValueError(f"the image is {image.size[0]}x{image.size[1]} pixels: it is empty.")
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8)).convert("RGB")
    if image.mode not in CONVERTIBLE:
        raise ValueError(
            f"images of mode {image.mode!r} have no fixed range of values: scale them to 0-255 and convert them to "
            f"'L' or 'RGB' first. Modes that work: {', '.join(CONVERTIBLE)}, I;16."
        )
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def open_rgb(file: str | Path | BinaryIO) -> Image.Image:
    """The image in a file as RGB, upright."""
    with Image.open(file) as image:
        return to_rgb(ImageOps.exif_transpose(image))
