"""Progressive image sizes (Tan & Le 2021, "EfficientNetV2"): small images first, which cost less.

Batches come from the data at their full size and are made smaller here. Models with a table of positions interpolate
it on the way (`interpolate_pos_encoding`).
"""

import inspect
from collections.abc import Iterable

import torch.nn.functional as F
from torch import nn

from .errors import RunError


def check_image_sizes(model: nn.Module, sizes: Iterable[float]) -> None:
    """Raises for models that take no images, and for sizes that patches don't divide."""
    if getattr(model, "main_input_name", None) != "pixel_values":
        raise RunError(f"image_size_schedule is for models of images; {type(model).__name__} is none.")
    if not interpolates(model):
        return
    patch = model.config.patch_size
    for size in sizes:
        if size % patch:
            raise RunError(f"image_size_schedule: {size:.0f} pixels are no multiple of patch_size={patch}.")


def interpolates(model: nn.Module) -> bool:
    return "interpolate_pos_encoding" in inspect.signature(model.forward).parameters


def resize_images(inputs: dict, size: int, interpolate: bool) -> dict:
    """A batch with images of size x size pixels."""
    if inputs["pixel_values"].shape[2:] == (size, size):
        return inputs
    images = F.interpolate(inputs["pixel_values"], (size, size), mode="bilinear", antialias=True)
    return {**inputs, "pixel_values": images, **({"interpolate_pos_encoding": True} if interpolate else {})}
