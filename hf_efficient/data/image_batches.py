"""Batches of images for models, made as whole tensors, which is fast."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from .augmentation import Augmentation, Draws, erase, flip_and_shift, flip_and_shift_boxes, mix, resized_crop
from .feature_cache import FixedFeatures, compute_once
from .image_sets import ImageSet
from .mosaics import mosaic as make_mosaics
from .randaugment import randaugment
from .soft_labels import soften

TASKS = ("classification", "detection", "pixels")
NOT_FOR_BOXES = ("resized_crop", "randaugment", "erase", "mixup", "cutmix", "label_smoothing")
NOT_FOR_PIXELS = ("mixup", "cutmix", "label_smoothing")


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
            "detection": `labels`, a dict of 'class_labels' (objects,) and 'boxes' (objects, 4) for each image.
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
        images: ImageSet,
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
        channels = images.pixels.shape[1]
        mean, std = (torch.tensor(x, dtype=torch.float32).expand(channels).view(-1, 1, 1) for x in (mean, std))
        if not (std > 0).all():
            raise ValueError(f"std={std.flatten().tolist()} must be positive.")
        self.scale, self.shift = 1 / (255 * std), -mean / std  # (x / 255 - mean) / std as one multiplication and sum
        # Shared, so that workers of a loader that lives on see the next epoch too.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._draws = None
        self.features = None
        if features is not None and task == "classification" and not self.augmentation.changes_pixels:
            looks = [self.scale.flatten().tolist(), self.shift.flatten().tolist(), self.image_size]
            self.features_name = features.name
            self.features = compute_once(features, images.pixels, looks, self._finished)

    def _check(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task={self.task!r} must be one of {', '.join(TASKS)}.")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} must not be negative.")
        if self.task == "detection" and self.images.boxes is None:
            raise ValueError("task='detection' needs images with boxes: load them with boxes=True.")
        if self.mosaic and self.task != "detection":
            raise ValueError(f"mosaic=True is for task='detection', not for {self.task!r}.")
        for task, names in (("detection", NOT_FOR_BOXES), ("pixels", NOT_FOR_PIXELS)):
            if self.task == task and (wrong := [name for name in names if getattr(self.augmentation, name)]):
                raise ValueError(f"augmentation: {', '.join(wrong)} can't be used with task={task!r}.")

    @property
    def num_classes(self) -> int:
        return len(self.images.class_names)

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
        pixel_values = self._finished(rows)
        draws, labels, weight, partners = self.draws(), self.images.labels[rows], None, None
        if self.augmentation.mixes:
            others = draws.partners[rows]
            pixel_values, weight = mix(pixel_values, self._finished(others), draws.mixtures[rows])
            partners = self.images.labels[others]
        if self.task == "pixels":
            return {"pixel_values": pixel_values}
        return {"pixel_values": pixel_values, "labels": self._soft(labels, partners, weight)}

    def _soft(self, labels: Tensor, partners: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        if not self.augmentation.softens_labels:
            return labels
        return soften(labels, self.num_classes, self.augmentation.label_smoothing, partners, weight)

    def draws(self) -> Draws:
        """The random numbers of the epoch."""
        epoch = self.epoch if self.augments else 0
        if self._draws is None or self._draws.epoch != epoch:
            self._draws = Draws(self.augmentation, len(self), self.seed, epoch)
        return self._draws

    def _detection_batch(self, rows: Tensor) -> dict:
        tiles = self.draws().mosaics[rows].flatten() if self.mosaic else rows
        images, boxes = self._moved(tiles)
        there = (boxes[:, 2] > 0) & (boxes[:, 3] > 0)  # boxes of what a shift moved out of the image are gone
        labels = [
            {"class_labels": label[seen], "boxes": box[seen]}
            for label, box, seen in zip(
                self.images.labels[tiles][:, None], boxes[:, None], there[:, None], strict=True
            )
        ]
        if self.mosaic:
            images, labels = make_mosaics(images, labels)
        return {"pixel_values": self._normalise(self._resize(images)), "labels": labels}

    def _finished(self, rows: Tensor) -> Tensor:
        augmentation, draws = self.augmentation, self.draws()
        images, _ = self._moved(rows)
        if augmentation.resized_crop:
            images = resized_crop(images, draws.cutouts[rows], augmentation.resized_crop)
        if augmentation.randaugment:
            images = randaugment(images, draws.operations[rows], augmentation.randaugment_magnitude)
        images = self._normalise(self._resize(images))
        return erase(images, draws.erasures[rows], augmentation.erase) if augmentation.erase else images

    def _moved(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        images = self.images.pixels.index_select(0, rows)
        boxes = None if self.images.boxes is None else self.images.boxes[rows]
        if self.augmentation.flip or self.augmentation.crop:
            flips, shifts = self.draws().flips[rows], self.draws().shifts[rows]
            images = flip_and_shift(images, flips, shifts)
            if boxes is not None:
                boxes = flip_and_shift_boxes(boxes, flips, shifts, images.shape[2:])
        return images, boxes

    def _resize(self, images: Tensor) -> Tensor:
        """As bytes, which is faster, and what processors make of an image."""
        if self.image_size is None or images.shape[2:] == self.image_size:
            return images
        return F.interpolate(images, self.image_size, mode="bilinear", antialias=True)

    def _normalise(self, images: Tensor) -> Tensor:
        return images.to(torch.float32).mul_(self.scale).add_(self.shift)
