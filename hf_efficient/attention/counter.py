"""Counters in buffers, which checkpoints keep, whose values are known without asking the device that holds them."""

import torch
from torch import Tensor

from ..linear.favor_plus import version_of


class Counter:
    """Knows what a counting buffer holds. To ask a GPU for it would wait for all that it has still to do.

    The buffer is read at first, and again whenever something else has changed it: a checkpoint, another device.
    """

    def __init__(self):
        self.value, self.known = 0, None

    def read(self, buffer: Tensor) -> int:
        version = version_of(buffer)
        if self.known is None or self.known[0] is not buffer or self.known[1] != version:
            self.value, self.known = 0 if buffer.is_meta else int(buffer), (buffer, version)
        return self.value

    def add(self, buffer: Tensor, number: int = 1) -> int:
        """Counts on, and returns what the buffer then holds."""
        value = self.read(buffer) + number
        buffer.add_(number)
        self.value, self.known = value, (buffer, version_of(buffer))
        return value


def first_run() -> bool:
    """Whether a forward pass counts: not while a checkpointed region is recomputed in a backward pass, which must see
    what its first run saw."""
    return torch._C._current_graph_task_id() == -1
