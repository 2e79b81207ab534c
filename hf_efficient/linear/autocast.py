"""Autocast on any device, `meta` included, which knows none."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on where x is."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Within, what is computed where x is keeps its precision."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()
