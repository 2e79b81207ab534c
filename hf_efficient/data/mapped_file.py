"""A file of bytes as a tensor."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def map_bytes(file: Path, shape: list[int]) -> Tensor:
    """A file as a tensor uint8 of this shape, whose pages are read when they are needed."""
    size = file.stat().st_size
    if size != np.prod(shape):
        raise ValueError(f"{file} has {size} bytes instead of {np.prod(shape)}.")
    return torch.from_file(str(file), size=size, dtype=torch.uint8).view(shape)
