"""Augmentation of whole batches of images as tensors.

Every random number belongs to an image in an epoch: it is drawn for the whole set from (seed, epoch, purpose) and
looked up by the image's index. So an image looks the same whatever batch, process or loader's worker it comes up in,
and after training resumed; and switching one augmentation on leaves the others' numbers alone.
"""

import math
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .randaugment import MAX_LEVEL

ERASED_AREA = (0.02, 0.33)  # shares of the image, and below the range of height / width, as in Zhong et al. 2020
ERASED_ASPECT = (0.3, 3.3)
CROPPED_ASPECT = (3 / 4, 4 / 3)  # the range of height / width, as in Szegedy et al. 2015
PURPOSES = (
    *("flip", "crop", "randaugment", "erase", "partners", "mixtures", "mixup", "cutmix", "mosaics"),
    "resized_crop",
)


@dataclass(frozen=True)
class Augmentation:
    """
    Args:
        flip: mirror half of the images left to right.
        crop: shift by up to so many pixels each way; what comes in is black.
        resized_crop: the least share of an image's area that is cut out and stretched to its size; 0 = none, 0.08 is
            usual for ImageNet. Of objects, those whose centre is in it are kept.
        randaugment: operations per image of RandAugment; 0 = none, 2 is usual.
        randaugment_magnitude: how strong they are, up to 10.
        erase: the probability with which a rectangle becomes the mean colour.
        mixup: α of Beta(α, α), from which the share of an image blended with another is drawn; 0 = never.
        cutmix: the same, of an image into which a rectangle of another is pasted. With both, either half of the time.
        mix_probability: how many images are mixed at all, with mixup or cutmix.
        label_smoothing: the share of a label that is spread over all classes.
    """

    flip: bool = False
    crop: int = 0
    resized_crop: float = 0.0
    randaugment: int = 0
    randaugment_magnitude: float = 9.0
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_probability: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            allowed = {bool: bool, int: int, float: (int, float)}[field.type]
            if not isinstance(value, allowed) or (field.type is not bool and isinstance(value, bool)):
                raise TypeError(f"{field.name}={value!r} must be of type {field.type.__name__}.")
            if not 0 <= value < math.inf:
                raise ValueError(f"{field.name}={value} must not be negative, nor infinite.")
        for name, largest in (
            *(("erase", 1), ("mix_probability", 1), ("resized_crop", 1)),
            ("randaugment_magnitude", MAX_LEVEL),
        ):
            if getattr(self, name) > largest:
                raise ValueError(f"{name}={getattr(self, name)} must be at most {largest}.")
        if self.label_smoothing >= 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be below 1: the label would be lost.")

    @property
    def mixes(self) -> bool:
        return bool((self.mixup or self.cutmix) and self.mix_probability)

    @property
    def changes_pixels(self) -> bool:
        moves = self.flip or self.crop or self.resized_crop
        return bool(moves or self.randaugment or self.erase or self.mixes)

    @property
    def softens_labels(self) -> bool:
        """Whether labels become shares of classes (B, classes), which `soft_cross_entropy` takes."""
        return self.mixes or self.label_smoothing > 0


class Draws:
    """The random numbers of an epoch for a set of `count` images, made when they are first asked for."""

    def __init__(self, augmentation: Augmentation, count: int, seed: int, epoch: int):
        self.augmentation, self.count, self.seed, self.epoch = augmentation, count, seed, epoch

    def generator(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch, PURPOSES.index(purpose)])

    def uniform(self, purpose: str, columns: int) -> Tensor:
        """(count, columns) in [0, 1)"""
        return torch.from_numpy(self.generator(purpose).random((self.count, columns), dtype=np.float32))

    @cached_property
    def flips(self) -> Tensor:
        """(count,) bool"""
        return self.uniform("flip", 1)[:, 0] < (0.5 if self.augmentation.flip else 0.0)

    @cached_property
    def shifts(self) -> Tensor:
        """(count, 2): pixels down and right, from -crop to crop"""
        reach = self.augmentation.crop
        return torch.from_numpy(self.generator("crop").integers(-reach, reach + 1, (self.count, 2)))

    @cached_property
    def cutouts(self) -> Tensor:
        """(count, 4) in [0, 1): area, aspect, top, left"""
        return self.uniform("resized_crop", 4)

    @cached_property
    def operations(self) -> Tensor:
        """(count, n, 2) in [0, 1): which, and in which direction"""
        return self.uniform("randaugment", 2 * self.augmentation.randaugment).unflatten(1, (-1, 2))

    @cached_property
    def erasures(self) -> Tensor:
        """(count, 5) in [0, 1): whether, area, aspect, top, left"""
        return self.uniform("erase", 5)

    @cached_property
    def partners(self) -> Tensor:
        """(count,): with which image each is mixed; every image is mixed into one."""
        return torch.from_numpy(self.generator("partners").permutation(self.count))

    @cached_property
    def mosaics(self) -> Tensor:
        """(count, 4): which images make a mosaic, the first of them being the image itself"""
        generator = self.generator("mosaics")
        others = [generator.permutation(self.count) for _ in range(3)]
        return torch.from_numpy(np.stack([np.arange(self.count), *others], 1))

    @cached_property
    def mixtures(self) -> Tensor:
        """(count, 4): the share an image keeps of itself, whether by cutting (0 or 1), and where, in [0, 1)"""
        mixup, cutmix = self.augmentation.mixup, self.augmentation.cutmix
        whether, which, *centre = self.generator("mixtures").random((4, self.count))
        cuts = which < (0.5 if mixup and cutmix else float(cutmix > 0))
        blended, kept = (
            self.generator(name).beta(alpha, alpha, self.count) if alpha else np.ones(self.count)
            for name, alpha in (("mixup", mixup), ("cutmix", cutmix))
        )
        share = np.where(cuts, kept, blended)
        share[whether >= self.augmentation.mix_probability] = 1.0
        return torch.from_numpy(np.stack([share, cuts, *centre], 1).astype(np.float32))


def flip_and_shift(images: Tensor, flips: Tensor, shifts: Tensor, fill: int = 0) -> Tensor:
    """(B, C, H, W) mirrored where `flips` (B,), then moved by `shifts` (B, 2) down and right; `fill` comes in."""
    height, width = images.shape[2:]
    reach = int(shifts.abs().max()) if len(shifts) else 0
    if reach:
        padded = F.pad(images, (reach,) * 4, value=fill)
        rows = torch.arange(height) + (reach - shifts[:, :1])  # (B, H)
    else:
        padded, rows = images, torch.arange(height).expand(len(images), -1)
    columns = torch.arange(width) + (reach - shifts[:, 1:])  # (B, W)
    columns = torch.where(flips[:, None], width - 1 + 2 * reach - columns, columns)
    places = rows[:, :, None] * padded.shape[3] + columns[:, None, :]  # (B, H, W)
    places = places.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return padded.flatten(2).gather(2, places).view(images.shape)


def flip_and_shift_boxes(boxes: Tensor, flips: Tensor, shifts: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes (M, 4) as cx, cy, w, h, each with the flip and shift of its image, where `flip_and_shift` moves what is in
    them, cut off at the image's edges; those that left it have no width or no height."""
    height, width = size
    cx, cy, w, h = boxes.unbind(1)
    cx = torch.where(flips, 1 - cx, cx) + shifts[:, 1] / width
    cy = cy + shifts[:, 0] / height
    left, right = ((cx + side * w / 2).clamp(0, 1) for side in (-1, 1))
    top, bottom = ((cy + side * h / 2).clamp(0, 1) for side in (-1, 1))
    return torch.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], 1)


def cut_out(draws: Tensor, smallest: float) -> Tensor:
    """What a random resized crop leaves: (B, 4): top, left, height, width as shares of the image"""
    area, aspect, top, left = draws.unbind(1)
    area, (low, high) = smallest + area * (1 - smallest), np.log(CROPPED_ASPECT)
    aspect = (low + aspect * (high - low)).exp()
    h, w = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    return torch.stack([top * (1 - h), left * (1 - w), h, w], 1)


def resized_crop(images: Tensor, parts: Tensor, mode: str = "bilinear") -> Tensor:
    """Parts (B, 4) of uint8 images (B, C, H, W), stretched to their size."""
    top, left, h, w = parts.unbind(1)
    shift_y, shift_x = (2 * start + side - 1 for start, side in ((top, h), (left, w)))
    none = torch.zeros_like(h)
    part = torch.stack([w, none, shift_x, none, h, shift_y], 1).view(-1, 2, 3)
    places = F.affine_grid(part, list(images.shape), align_corners=False)
    cut = F.grid_sample(images.float(), places, mode=mode, padding_mode="border", align_corners=False)
    return cut.round_().to(torch.uint8)


def resized_crop_boxes(boxes: Tensor, parts: Tensor) -> Tensor:
    """Boxes (M, 4) in these parts (M, 4) of their images, cut off at the edges; those whose centre is outside have no
    width (as in SSD, Liu et al. 2016)."""
    top, left, h, w = parts.unbind(1)
    cx, cy, width, height = boxes.unbind(1)
    cx, cy, width, height = (cx - left) / w, (cy - top) / h, width / w, height / h
    inside = (cx > 0) & (cx < 1) & (cy > 0) & (cy < 1)
    x, y = ((c - d / 2).clamp(0, 1) for c, d in ((cx, width), (cy, height)))
    right, bottom = ((c + d / 2).clamp(0, 1) for c, d in ((cx, width), (cy, height)))
    return torch.stack([(x + right) / 2, (y + bottom) / 2, (right - x) * inside, bottom - y], 1)


def erase(images: Tensor, draws: Tensor, probability: float) -> Tensor:
    """Random erasing: sets a rectangle of some normalised images (B, C, H, W) to 0, the mean colour."""
    height, width = images.shape[2:]
    whether, area, aspect, top, left = draws.unbind(1)
    area = (ERASED_AREA[0] + area * (ERASED_AREA[1] - ERASED_AREA[0])) * height * width
    low, high = np.log(ERASED_ASPECT)
    aspect = (low + aspect * (high - low)).exp()
    h, w = (area * aspect).sqrt().round().clamp(1, height), (area / aspect).sqrt().round().clamp(1, width)
    top, left = (top * (height - h + 1)).floor(), (left * (width - w + 1)).floor()
    erased = rectangles(top, left, h, w, (height, width)) & (whether < probability)[:, None, None]
    return images * (~erased)[:, None].float()


def mix(images: Tensor, partners: Tensor, mixtures: Tensor) -> tuple[Tensor, Tensor]:
    """Mixup and CutMix: images (B, C, H, W), and the share of each image that is its own (B,)."""
    height, width = images.shape[2:]
    share, cuts, y, x = mixtures.unbind(1)
    h, w = ((1 - share).sqrt() * side for side in (height, width))
    top, left = (y * height - h / 2).round(), (x * width - w / 2).round()
    pasted = rectangles(top, left, h.round(), w.round(), (height, width))  # a part may lie outside
    own = (~pasted).float()
    weight = torch.where(cuts[:, None, None] > 0, own, share[:, None, None])  # (B, H, W)
    return torch.lerp(partners, images, weight[:, None]), torch.where(cuts > 0, own.mean((1, 2)), share)


def rectangles(top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks (B, H, W), True inside."""
    rows, columns = torch.arange(size[0]), torch.arange(size[1])
    inside_rows = (rows >= top[:, None]) & (rows < (top + height)[:, None])
    inside_columns = (columns >= left[:, None]) & (columns < (left + width)[:, None])
    return inside_rows[:, :, None] & inside_columns[:, None, :]
