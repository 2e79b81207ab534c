"""Scratch memory: buffers of a chunk's size, which stay in the processor's cache and are used again by the next call.

They are kept between calls on a CPU, whose allocator would give them back to the system and fault every page in
again. Each thread has its own. `release_scratch` gives all of it back.
"""

import math
import threading
from weakref import WeakSet

import torch
from torch import Tensor

# Elements of one buffer: larger ones leave the cache, smaller ones pay more calls per token. Measured best.
TILE = 2**20

MAX_VIEWS = 1024  # of buffers, for every length ever seen


class Scratch:
    """Buffers by name and dtype, and views of them by shape."""

    def __init__(self):
        self.kept: dict[tuple, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A contiguous tensor with anything in it, in memory that the next call with this name uses again."""
        view = self.kept.get((name, like.dtype, shape))
        return self._allocate(name, shape, like) if view is None else view

    def _allocate(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        size, kept, dtype = math.prod(shape), self.kept, like.dtype
        if len(kept) > MAX_VIEWS:
            kept.clear()
        memory = kept.get((name, dtype))
        if memory is None or memory.numel() < size:
            with torch.inference_mode(False):
                memory = like.new_empty(size)
            if size > 2 * TILE:  # too much to hold on to
                return memory.view(shape)
            for view in [key for key in list(kept) if key[:2] == (name, dtype)]:
                kept.pop(view, None)
            kept[name, dtype] = memory
        return kept.setdefault((name, dtype, shape), memory[:size].view(shape))

    def triangle(self, size: int, like: Tensor) -> Tensor:
        """Ones on and below the diagonal."""
        key = (size, like.dtype)
        triangle = self.kept.get(key)
        if triangle is None:
            with torch.inference_mode(False):
                triangle = self.kept[key] = like.new_ones(size, size).tril_()
        return triangle


_of_thread = threading.local()
_all: WeakSet[Scratch] = WeakSet()


def scratch_on(device: torch.device) -> Scratch:
    """The thread's own, or, where nothing is kept between calls, a new one."""
    if device.type != "cpu" or torch.compiler.is_compiling():
        return Scratch()
    if not hasattr(_of_thread, "scratch"):
        _of_thread.scratch = Scratch()
        _all.add(_of_thread.scratch)
    return _of_thread.scratch


def release_scratch() -> int:
    """Gives back the scratch memory of all threads, and says how many bytes that were. Calls that run keep theirs."""
    released = 0
    for scratch in list(_all):
        tensors = list(scratch.kept.values())
        released += sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values())
        scratch.kept.clear()
    return released
