"""The memory that work takes: the peak in a process of its own, which fails where the machine has no more."""

import ctypes
import gc
import multiprocessing
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

import torch

from ..training.provenance import resident


def peaks(make: Callable[[], Callable], warm: Callable[[], Callable], times: int = 1) -> list[int] | str:
    """Bytes at the peak of what `make` builds and calls, above what the process took before, so many times.

    In a process of its own, after `warm` (the same, but tiny) was called there. Or why there are none.

    Args:
        make, warm: what makes the call; it can be pickled.
    """
    if not Path("/proc/self/status").exists():
        return "peak memory is read from /proc, which this system lacks"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_peaks, make, warm, times, torch.get_num_threads()).result()
        except (RuntimeError, MemoryError, BrokenProcessPool) as error:
            return f"failed: {str(error).splitlines()[0][:80]}"


def _peaks(make: Callable, warm: Callable, times: int, threads: int) -> list[int]:
    torch.set_num_threads(threads)
    limit_memory()
    warm()()
    found = []
    for _ in range(times):
        idle = forget_peak()
        make()()
        found.append(resident("VmHWM") - idle)
    return found


def forget_peak() -> int:
    """The bytes that the process has now; its peak counts from here on."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # or what was freed, a whole model at worst, would count as idle
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def limit_memory() -> None:
    """What needs more memory than there is fails, and is left out, instead of having the process killed."""
    if Path("/proc/meminfo").exists():
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
        limit = int(resident("VmData") + 0.9 * free)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


@contextmanager
def limited_memory() -> Iterator[None]:
    """The same for a while."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit_memory()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
