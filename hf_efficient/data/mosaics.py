"""Mosaics: four images become one, with the objects of all."""

import torch
from torch import Tensor

from .objects import Objects


def mosaic(images: Tensor, objects: Objects) -> tuple[Tensor, Objects]:
    """Four images in a square, with all objects: each four of (4B, C, H, W) -> one of (B, C, 2H, 2W), row by row.

    Boxes of the result are shares of the whole square.
    """
    if images.dim() != 4 or len(images) % 4 or not len(images):
        raise ValueError(f"images must be (4·B, C, H, W), as four make one mosaic, got {tuple(images.shape)}.")
    if len(objects) != len(images):
        raise ValueError(f"there are objects of {len(objects)} images, and {len(images)} images.")
    tiles = images.unflatten(0, (-1, 2, 2))  # (B, 2, 2, C, H, W)
    squares = tiles.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    place = objects.owners % 4
    shifts = torch.stack([place % 2, place // 2, 0 * place, 0 * place], 1)
    sizes = torch.tensor(squares.shape[2:]).expand(len(squares), 2)
    return squares, Objects(objects.offsets[::4], objects.classes, (objects.boxes + shifts) / 2, sizes)
