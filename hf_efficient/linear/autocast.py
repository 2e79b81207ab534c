"""Autocast on any device, `meta` included, which knows none."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on where x is."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Within, what is computed where x is keeps its precision."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()


def autocast_as_now(x: Tensor) -> Callable[[], AbstractContextManager]:
    """Makes contexts in which autocast is as it is now: a backward pass runs outside that of its forward pass."""
    if x.is_meta:
        return nullcontext
    kind = x.device.type
    return partial(torch.autocast, kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
