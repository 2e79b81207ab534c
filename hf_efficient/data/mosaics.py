"""Mosaics: four images with one object each become one image with four."""

import torch
from torch import Tensor

Label = dict[str, Tensor]


def mosaic(images: Tensor, labels: list[Label]) -> tuple[Tensor, list[Label]]:
    """Four images in a square, with all objects: each four of (4B, C, H, W) -> one of (B, C, 2H, 2W), row by row.

    Labels have 'class_labels' (objects,) and 'boxes' (objects, 4), as (cx, cy, w, h) in [0, 1]; those of the result
    are shares of the whole square.
    """
    if images.dim() != 4 or len(images) % 4 or not len(images):
        raise ValueError(f"images must be (4·B, C, H, W), as four make one mosaic, got {tuple(images.shape)}.")
    if len(labels) != len(images):
        raise ValueError(f"labels must have one entry per image: {len(images)}, got {len(labels)}.")
    tiles = images.unflatten(0, (-1, 2, 2))  # (B, 2, 2, C, H, W)
    squares = tiles.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    joined = [join(labels[start : start + 4]) for start in range(0, len(labels), 4)]
    return squares, joined


def join(labels: list[Label]) -> Label:
    boxes = []
    for index, label in enumerate(labels):
        row, column = divmod(index, 2)
        boxes.append((label["boxes"] + label["boxes"].new_tensor([column, row, 0, 0])) / 2)
    return {"class_labels": torch.cat([label["class_labels"] for label in labels]), "boxes": torch.cat(boxes)}
