"""RandAugment (Cubuk et al. 2020) on batches: every image gets some operations of these, drawn for it alone.

An operation takes uint8 images (B, 3, H, W) and a strength in [-1, 1] for each, and returns uint8 images; strength 0
changes nothing, except with autocontrast and equalize, which have none. They follow Pillow's, with ranges as in the
paper's code; all that move pixels are one bilinear sampling, with black outside.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

GREY = (0.299, 0.587, 0.114)
MAX_LEVEL = 10


def randaugment(images: Tensor, draws: Tensor, magnitude: float) -> Tensor:
    """
    Args:
        images: uint8 (B, 3, H, W)
        draws: (B, n, 2) in [0, 1): which n operations each image gets one after the other, and in which direction.
        magnitude: how strong they are, from 0 to 10.
    """
    images = images.clone()
    for choice, direction in draws.permute(1, 2, 0):
        operation = (choice * len(OPERATIONS)).long()
        strength = torch.where(direction < 0.5, -1.0, 1.0) * (magnitude / MAX_LEVEL)
        moved = (operation < len(MOVES)).nonzero().flatten()
        if len(moved):
            matrices = move_matrices(operation[moved], strength[moved], images.shape[2:])
            images.index_copy_(0, moved, sample(images.index_select(0, moved), matrices))
        for index, change in enumerate(CHANGES.values(), start=len(MOVES)):
            rows = (operation == index).nonzero().flatten()
            if len(rows):
                images.index_copy_(0, rows, change(images.index_select(0, rows), strength[rows]))
    return images


def move_matrices(operation: Tensor, strength: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, 2, 3): from a pixel of the result to the one it comes from, both counted from the centre."""
    height, width = size
    x = strength.new_zeros(len(strength), 2, 3)
    x[:, 0, 0] = x[:, 1, 1] = 1
    for index, name in enumerate(MOVES):
        rows = (operation == index).nonzero().flatten()
        amount = strength[rows]
        if name == "shear_x":
            x[rows, 0, 1] = 0.3 * amount
        elif name == "shear_y":
            x[rows, 1, 0] = 0.3 * amount
        elif name == "translate_x":
            x[rows, 0, 2] = (0.45 * width * amount).round()
        elif name == "translate_y":
            x[rows, 1, 2] = (0.45 * height * amount).round()
        else:
            angle = math.radians(30) * amount
            x[rows, 0, 0] = x[rows, 1, 1] = angle.cos()
            x[rows, 0, 1], x[rows, 1, 0] = -angle.sin(), angle.sin()
    return x


def sample(images: Tensor, matrices: Tensor) -> Tensor:
    """Images seen through affine maps of pixels (B, 2, 3)."""
    height, width = images.shape[2:]
    x, y = ((torch.arange(size) + 0.5) * 2 / size - 1 for size in (width, height))  # grid_sample counts from -1 to 1
    to_x, to_y = matrices.unbind(1)  # (B, 3)
    ratio = width / height
    grid = torch.stack(
        [
            (to_x[:, :1] * x)[:, None, :] + (to_x[:, 1:2] / ratio * y + to_x[:, 2:] * (2 / width))[:, :, None],
            (to_y[:, :1] * ratio * x)[:, None, :] + (to_y[:, 1:2] * y + to_y[:, 2:] * (2 / height))[:, :, None],
        ],
        dim=3,
    )  # (B, H, W, 2)
    return to_bytes(F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False))


def brightness(images: Tensor, strength: Tensor) -> Tensor:
    return blend(torch.zeros(()), images.float(), strength)


def contrast(images: Tensor, strength: Tensor) -> Tensor:
    images = images.float()
    return blend(grey(images).mean((2, 3), keepdim=True).round(), images, strength)


def colour(images: Tensor, strength: Tensor) -> Tensor:
    images = images.float()
    return blend(grey(images), images, strength)


def sharpness(images: Tensor, strength: Tensor) -> Tensor:
    images = images.float()
    kernel = torch.full((3, 1, 3, 3), 1 / 13)
    kernel[:, :, 1, 1] = 5 / 13
    smooth = images.clone()
    if min(images.shape[2:]) > 2:  # pixels at the border lack neighbours to be smoothed with
        smooth[:, :, 1:-1, 1:-1] = F.conv2d(images, kernel, groups=3)
    return blend(smooth.round(), images, strength)


def posterize(images: Tensor, strength: Tensor) -> Tensor:
    """Keeps only the highest 8 to 4 bits."""
    bits = 8 - (strength.abs() * 4).round()
    step = (2 ** (8 - bits)).to(torch.uint8)[:, None, None, None]
    return images - images % step


def solarize(images: Tensor, strength: Tensor) -> Tensor:
    """Inverts all values above a threshold."""
    threshold = (256 * (1 - strength.abs()))[:, None, None, None]
    return torch.where(images >= threshold, 255 - images, images)


def autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    """The darkest value of each channel becomes 0 and the brightest 255."""
    images = images.float()
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    stretched = (images - low) * (255 / (high - low).clamp_min(1))
    return to_bytes(torch.where(high > low, stretched, images))


def equalize(images: Tensor, strength: Tensor) -> Tensor:
    """Equalises the histogram of each channel."""
    values = images.flatten(0, 1).flatten(1).long()  # (B·3, H·W)
    rows = torch.arange(len(values))[:, None]
    counts = (values + 256 * rows).flatten().bincount(minlength=256 * len(values)).view(-1, 256)
    last = counts.gather(1, values.amax(1, keepdim=True))
    step = (counts.sum(1, keepdim=True) - last) // 255
    before = counts.cumsum(1) - counts
    table = ((before + step // 2) // step.clamp_min(1)).clamp_max(255)
    table = torch.where(step > 0, table, torch.arange(256))
    return table.gather(1, values).to(torch.uint8).view(images.shape)


def identity(images: Tensor, strength: Tensor) -> Tensor:
    return images


def blend(without: Tensor, images: Tensor, strength: Tensor) -> Tensor:
    """0.1 to 1.9 times what distinguishes the images from those without it"""
    factor = (1 + 0.9 * strength)[:, None, None, None]
    return to_bytes(without + (images - without) * factor)


def grey(images: Tensor) -> Tensor:
    return (images * images.new_tensor(GREY).view(3, 1, 1)).sum(1, keepdim=True).round()


def to_bytes(images: Tensor) -> Tensor:
    return images.round_().clamp_(0, 255).to(torch.uint8)


MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
CHANGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    change.__name__: change
    for change in (
        identity,
        brightness,
        contrast,
        colour,
        sharpness,
        posterize,
        solarize,
        autocontrast,
        equalize,
    )
}
OPERATIONS = (*MOVES, *CHANGES)
