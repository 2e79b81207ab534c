"""Batches of images for models, made as whole tensors, which is fast."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from .augmentation import (
    Augmentation,
    Draws,
    change_colours,
    cut_out,
    erase,
    flip_and_shift,
    flip_and_shift_boxes,
    mix,
    resized_crop,
    resized_crop_boxes,
)
from .feature_cache import FixedFeatures, compute_once
from .image_decoding import IGNORED
from .image_rows import Blocks
from .image_sets import Images, ImageSet
from .mosaics import mosaic as make_mosaics
from .objects import Objects
from .randaugment import randaugment
from .soft_labels import soften

# What can't be done to the labels of a task, or makes no sense of them.
MIXES = ("mixup", "cutmix", "label_smoothing")
NOT_FOR = {
    "classification": (),
    "detection": ("randaugment", "erase", *MIXES),
    "segmentation": ("randaugment", "erase", *MIXES),
    "pixels": MIXES,
}
TASKS = tuple(NOT_FOR)
KINDS = {"classification": "label", "detection": "objects", "segmentation": "mask"}


class ImageBatches(Dataset):
    """A set of images whose `__getitems__(indices)` is a whole batch, ready for a model; `take_batch` is its collator.

    Images are moved and RandAugmented at the size they have, then resized, then erased and mixed. Each looks as (seed,
    epoch, its index) say, whatever else is in the batch; `set_epoch` must be called before each epoch, in every
    process.

    Args:
        mean, std: what pixels, as 0 to 1, are normalised with; one for each channel.
        image_size: of the batches; None leaves it as it is.
        augmentation: None for evaluation.
        task: what is in a batch beside `pixel_values` (B, C, H, W):
            "classification": `labels`, class indices (B,), or shares of classes (B, classes) if the augmentation
                `softens_labels`; such need `soft_cross_entropy`.
            "detection": `labels`, a dict of 'class_labels' (objects,), 'boxes' (objects, 4) and 'orig_size' (2,), the
                height and width in the file, for each image.
            "segmentation": `labels`, the class of each pixel (B, H, W); 255 is ignored.
            "pixels": nothing.
        mosaic: for detection: each image in a square with three others. Without augmentation, always the same three.
        features: what a model makes of images before anything that learns. Where no augmentation changes pixels, it is
            computed once, kept in the cache, and stands in a batch under its name, instead of `pixel_values`.

    Example:
        >>> images = load_images("cifar10")
        >>> train = ImageBatches(images.train, mean=MEAN, std=STD, augmentation=Augmentation(flip=True, crop=4))
        >>> Trainer(..., train_dataset=train, data_collator=take_batch)  # with remove_unused_columns=False
    """

    def __init__(
        self,
        images: Images,
        *,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        image_size: int | tuple[int, int] | None = None,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        task: str = "classification",
        mosaic: bool = False,
        features: FixedFeatures | None = None,
    ):
        self.images, self.seed, self.task, self.mosaic = images, seed, task, mosaic
        self.augments = augmentation is not None
        self.augmentation = augmentation or Augmentation()
        self.image_size = (image_size, image_size) if isinstance(image_size, int) else image_size and tuple(image_size)
        self._check()
        channels = images.shape[1]
        mean, std = (torch.tensor(x, dtype=torch.float32).expand(channels).view(-1, 1, 1) for x in (mean, std))
        if not (std > 0).all():
            raise ValueError(f"std={std.flatten().tolist()} must be positive.")
        self.scale, self.shift = 1 / (255 * std), -mean / std  # (x / 255 - mean) / std as one multiplication and sum
        # Shared, so that workers of a loader that lives on see the next epoch too.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._draws = None
        self.features = None
        stored = isinstance(images, ImageSet)
        if features is not None and stored and task == "classification" and not self.augmentation.changes_pixels:
            looks = [self.scale.flatten().tolist(), self.shift.flatten().tolist(), self.image_size]
            self.features_name = features.name
            self.features = compute_once(features, images.pixels, looks, lambda rows: self._finished(rows)[0])

    def _check(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task={self.task!r} must be one of {', '.join(TASKS)}.")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} must not be negative.")
        if self.images.kind != KINDS.get(self.task, self.images.kind):
            raise ValueError(
                f"task={self.task!r} needs images with labels of kind {KINDS[self.task]}, got {self.images.kind}."
            )
        if self.mosaic and self.task != "detection":
            raise ValueError(f"mosaic=True is for task='detection', not for {self.task!r}.")
        if wrong := [name for name in NOT_FOR[self.task] if getattr(self.augmentation, name)]:
            raise ValueError(f"augmentation: {', '.join(wrong)} can't be used with task={self.task!r}.")

    @property
    def num_classes(self) -> int:
        return len(self.images.class_names)

    @property
    def skipped(self) -> list[str]:
        """What was left out of the data, and why."""
        return self.images.skipped

    @property
    def blocks(self) -> Blocks | None:
        """Which images are read together."""
        return self.images.blocks

    @property
    def epoch(self) -> int:
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict:
        return {name: value[0] for name, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        if not len(rows):
            raise ValueError("indices is empty: a batch needs at least one image.")
        if self.task == "detection":
            return self._detection_batch(rows)
        if self.features is not None:
            return {self.features_name: self.features[rows], "labels": self._soft(self.images.labels[rows])}
        pixel_values, labels = self._finished(rows)
        draws, weight, partners = self.draws(), None, None
        if self.augmentation.mixes:
            others = self._near(rows, draws.partners[rows])
            mixed, partners = self._finished(others)
            pixel_values, weight = mix(pixel_values, mixed, draws.mixtures[rows])
        if self.task == "pixels":
            return {"pixel_values": pixel_values}
        return {"pixel_values": pixel_values, "labels": self._soft(labels, partners, weight)}

    def _near(self, rows: Tensor, others: Tensor) -> Tensor:
        """What rows are put together with: any others, or, where these would have to be read, some beside them."""
        return others if self.blocks is None else self.blocks.near(rows, others)

    def _soft(self, labels: Tensor, partners: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        if not self.augmentation.softens_labels:
            return labels
        return soften(labels, self.num_classes, self.augmentation.label_smoothing, partners, weight)

    def pictures(self, pixel_values: Tensor) -> list[Image.Image]:
        """Images of a batch as people see them."""
        levels = ((pixel_values - self.shift) / self.scale).round().clamp(0, 255).to(torch.uint8)
        return [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in levels]

    def draws(self) -> Draws:
        """The random numbers of the epoch."""
        epoch = self.epoch if self.augments else 0
        if self._draws is None or self._draws.epoch != epoch:
            self._draws = Draws(self.augmentation, len(self), self.seed, epoch)
        return self._draws

    def _detection_batch(self, rows: Tensor) -> dict:
        if self.mosaic:
            rows = self._near(rows[:, None], self.draws().mosaics[rows]).flatten()
        images, objects = self._moved(rows)
        if self.mosaic:
            images, objects = make_mosaics(images, objects)
        return {"pixel_values": self._normalise(self._resize(images)), "labels": objects.as_labels()}

    def _finished(self, rows: Tensor) -> tuple[Tensor, Tensor | Objects]:
        augmentation, draws = self.augmentation, self.draws()
        images, labels = self._moved(rows)
        if augmentation.randaugment:
            images = randaugment(images, draws.operations[rows], augmentation.randaugment_magnitude)
        images = self._normalise(self._resize(images))
        if self.task == "segmentation":
            labels = self._resize(labels, "nearest-exact").squeeze(1).long()
        return erase(images, draws.erasures[rows], augmentation.erase) if augmentation.erase else images, labels

    def _moved(self, rows: Tensor) -> tuple[Tensor, Tensor | Objects]:
        """Images with labels after all that moves both, and in other colours; masks are (B, 1, H, W)."""
        (images, labels), draws = self.images.take(rows), self.draws()
        if self.images.kind == "mask":
            labels = labels[:, None]
        if self.augmentation.flip or self.augmentation.crop:
            flips, shifts = draws.flips[rows], draws.shifts[rows]
            images = flip_and_shift(images, flips, shifts)
            if self.images.kind == "mask":
                labels = flip_and_shift(labels, flips, shifts, IGNORED)
            elif self.images.kind == "objects":
                owners = labels.owners
                boxes = flip_and_shift_boxes(labels.boxes, flips[owners], shifts[owners], images.shape[2:])
                labels = labels.moved(boxes)
        if self.augmentation.vertical_flip:
            turned = draws.vertical_flips[rows]
            images = images.where(~turned[:, None, None, None], images.flip(2))
            if self.images.kind == "mask":
                labels = labels.where(~turned[:, None, None, None], labels.flip(2))
            elif self.images.kind == "objects":
                x, y, w, h = labels.boxes.unbind(1)
                labels = labels.moved(torch.stack([x, y.where(~turned[labels.owners], 1 - y), w, h], 1))
        if self.augmentation.resized_crop:
            parts = cut_out(draws.cutouts[rows], self.augmentation.resized_crop)
            images = resized_crop(images, parts)
            if self.images.kind == "mask":
                labels = resized_crop(labels, parts, "nearest")
            elif self.images.kind == "objects":
                labels = labels.moved(resized_crop_boxes(labels.boxes, parts[labels.owners]))
        if self.augmentation.colour:
            images = change_colours(images, draws.colours[rows], self.augmentation.colour)
        return images, labels

    def _resize(self, images: Tensor, mode: str = "bilinear") -> Tensor:
        """As bytes, which is faster, and what processors make of an image."""
        if self.image_size is None or images.shape[2:] == self.image_size:
            return images
        return F.interpolate(images, self.image_size, mode=mode, antialias=mode == "bilinear")

    def _normalise(self, images: Tensor) -> Tensor:
        return images.to(torch.float32).mul_(self.scale).add_(self.shift)
