"""Converts images to 8-bit RGB, as models expect them."""

import numpy as np
from PIL import Image

CONVERTIBLE = ("RGB", "RGBA", "RGBX", "RGBa", "L", "LA", "La", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "1")


def to_rgb(image: Image.Image) -> Image.Image:
    """The image as 8-bit RGB, from any mode that has one meaning.

    16-bit grey is scaled to 8 bits; `Image.convert` clips it, which turns most of such an image white. Transparency is
    dropped. An image without pixels is an error: without it, a model would classify it all the same.
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
    return image.convert("RGB")
