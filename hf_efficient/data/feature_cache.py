"""What a model makes of images before anything that learns, computed once and mapped into memory from then on.

A file in the cache is named by a hash of the pixels and of all that the features depend on beside them. It is written
under a lock beside its place and renamed, so that it is there as a whole or not at all.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from tqdm import tqdm

from .folders import CACHE_FOLDER, cache_folder

VERSION = 1  # of the file's layout
IMAGES_AT_A_TIME = 256


class FixedFeatures(Protocol):
    """A function of normalised images (B, C, H, W) that nothing changes in training.

    `name` is what the model's forward calls its values; `identity` says all that they depend on beside the images.
    """

    name: str
    identity: str

    def __call__(self, pixel_values: Tensor) -> Tensor: ...


@torch.no_grad()
def compute_once(features: FixedFeatures, pixels: Tensor, looks: list, finish: Callable[[Tensor], Tensor]) -> Tensor:
    """The features (N, ...) of all images in float32, from the cache if they are there.

    Args:
        pixels: uint8 (N, C, H, W), as they are stored.
        looks: what `finish` depends on, as JSON takes it.
        finish: indices (B,) -> images (B, C, H', W'), as the model gets them.
    """
    shape = (len(pixels), *features(finish(torch.zeros(1, dtype=torch.int64))).shape[1:])
    size = 4 * int(np.prod(shape))
    key = [VERSION, features.identity, looks, list(pixels.shape), content_hash(pixels)]
    place = cache_folder() / "features" / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    if not is_whole(place, size):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{place}.lock"):
                if not is_whole(place, size):  # another process may have written it meanwhile
                    write(place, features, len(pixels), finish)
        except OSError as error:
            raise OSError(
                f"{features.name} of {size / 2**30:.1f} GiB can't be stored in {place.parent}: {error}. Set "
                f"{CACHE_FOLDER} to another folder."
            ) from error
    return torch.from_file(str(place), size=size // 4, dtype=torch.float32).view(shape)


def content_hash(pixels: Tensor) -> str:
    found = hashlib.blake2b()
    for part in pixels.split(IMAGES_AT_A_TIME):
        found.update(part.contiguous().numpy())
    return found.hexdigest()


def is_whole(place: Path, size: int) -> bool:
    return place.is_file() and place.stat().st_size == size


def write(place: Path, features: FixedFeatures, count: int, finish: Callable[[Tensor], Tensor]) -> None:
    partial = place.with_suffix(".partial")
    try:
        with open(partial, "wb") as file:
            parts = torch.arange(count).split(IMAGES_AT_A_TIME)
            for rows in tqdm(parts, desc=f"computing {features.name}", unit="batch", disable=None, leave=False):
                file.write(features(finish(rows)).float().contiguous().numpy())
        os.replace(partial, place)
    finally:
        partial.unlink(missing_ok=True)
