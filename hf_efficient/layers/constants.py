"""Plain numbers where a tensor is."""

from collections.abc import Iterable

import torch
from torch import Tensor


def constant(values: Iterable[float], like: Tensor) -> Tensor:
    """(n,) numbers, filled in one by one: a copy of them from the host would wait for the device."""
    return torch.stack([like.new_full((), value) for value in values])
