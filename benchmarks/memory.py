"""How memory is measured: the peak in a process of its own, and what glibc does with freed memory."""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from benchmarks.workloads import FORWARD, TRAINING, Contender
from hf_efficient.experiments.process_memory import forget_peak, limit_memory
from hf_efficient.training.provenance import resident

# What glibc is told, so that it keeps freed memory instead of giving it back to the system.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**34)}


def keeps_freed_memory() -> bool:
    """Whether this process does."""
    return KEEP_MEMORY.items() <= os.environ.items()


def keep_freed_memory() -> None:
    """Starts this program anew with KEEP_MEMORY set, which only a new process heeds.

    Otherwise every call's results are returned to the system and faulted in again page by page, and on a virtual
    machine those faults can take longer than what is to be measured.
    """
    if not keeps_freed_memory():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **KEEP_MEMORY})


@contextlib.contextmanager
def freed_memory(keep: bool) -> Iterator[None]:
    """Processes started within keep freed memory, or don't: glibc reads its settings when a process starts."""
    before = {name: os.environ.pop(name, None) for name in KEEP_MEMORY}
    os.environ.update(KEEP_MEMORY if keep else {})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def peak_memory(contender: Contender, length: int, causal: bool) -> dict[str, int] | str:
    """Bytes at the peak of a forward and of a forward+backward pass, inputs included, or why there are none.

    In a process of its own: how far its resident memory rises above what it was after a tiny warm-up.
    """
    if not Path("/proc/self/status").exists():
        return "peak memory is read from /proc, which this system lacks"
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as pool:
        try:
            return pool.submit(_peak_memory, contender, length, causal, torch.get_num_threads()).result()
        except (RuntimeError, MemoryError, BrokenProcessPool) as error:
            return f"failed: {str(error).splitlines()[0][:80]}"


def _peak_memory(contender: Contender, length: int, causal: bool, threads: int) -> dict[str, int]:
    torch.set_num_threads(threads)
    limit_memory()
    contender.make(64, causal).train()
    idle, work = forget_peak(), contender.make(length, causal)
    work.infer()
    forward = resident("VmHWM") - idle
    work.train()
    return {FORWARD: forward, TRAINING: resident("VmHWM") - idle}
