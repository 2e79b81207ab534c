"""How the scripts measure: interleaved rounds, ratios instead of seconds, peak memory in a process of its own.

Time on a shared machine means little; the ratio of two times taken in the same round means a lot. So every contender
runs once per round, beside what it is compared with, and what counts is the median of the rounds' ratios.
"""

import argparse
import contextlib
import ctypes
import datetime
import gc
import math
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from contenders import Contender
from tqdm import tqdm

FORWARD, TRAINING = "forward", "forward+backward"
PATIENCE = 20.0  # seconds that one call may take
SLOW_CALL, FEW_ROUNDS = 4.0, 3  # long calls are steadier, and dear: fewer rounds will do
LONGEST_TURN, MOST_CALLS = 0.02, 20  # short calls are repeated within a round until their turn is this long
UNPROBED = 512  # up to this length every contender is fast enough to be called without asking


# What glibc is told, so that it keeps freed memory instead of giving it back to the system.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**34)}


def keep_freed_memory() -> None:
    """Starts this script anew with KEEP_MEMORY set, which only a new process heeds.

    Otherwise every call's results are returned to the system and faulted in again page by page, and on a virtual
    machine those faults can take longer than what is to be measured.
    """
    if not KEEP_MEMORY.items() <= os.environ.items():
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


class Ratio(NamedTuple):
    """Median and quartiles of the per-round ratio."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{significant(self.median)} [{significant(self.low)} {significant(self.high)}]"


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    rounds = np.asarray(numerator) / np.asarray(denominator)
    low, median, high = np.percentile(rounds, [25, 50, 75])
    return Ratio(float(median), float(low), float(high))


def crossover(lengths: Sequence[int], speedups: Sequence[float]) -> float:
    """The length from which on the speed-up stays above 1, interpolated on the log-log plot.

    The shortest length if it is ahead everywhere, infinity if it is behind at the longest.
    """
    behind = [i for i, speedup in enumerate(speedups) if speedup < 1]
    if not behind:
        return float(lengths[0])
    i = behind[-1]
    if i == len(lengths) - 1:
        return math.inf
    (x, y), (a, b) = np.log(lengths[i : i + 2]), np.log(speedups[i : i + 2])
    return float(np.exp(x - a * (y - x) / (b - a)))


def describe_crossover(lengths: Sequence[int], speedups: Sequence[float]) -> str:
    at = crossover(lengths, speedups)
    if math.isinf(at):
        ever = any(speedup > 1 for speedup in speedups)
        return f"slower at {lengths[-1]}" if ever else f"always slower up to {lengths[-1]}"
    return f"from the shortest on ({lengths[0]})" if at == lengths[0] else f"{float(f'{at:.2g}'):.0f}"


def seconds_of(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleave(calls: dict[str, Callable], rounds: int, after_call: Callable = lambda: None) -> dict[str, list[float]]:
    """Seconds per call of every contender in every round; each round starts with another one."""
    first = {name: seconds_of(call) for name, call in calls.items()}  # warms up
    repeats = {name: min(MOST_CALLS, max(1, math.ceil(LONGEST_TURN / s))) for name, s in first.items()}
    if max(first.values()) > SLOW_CALL:
        rounds = min(rounds, FEW_ROUNDS)
    names, taken = list(calls), {name: [] for name in calls}
    for i in range(rounds):
        shift = i % len(names)
        for name in names[shift:] + names[:shift]:
            start = time.perf_counter()
            for _ in range(repeats[name]):
                calls[name]()
            taken[name].append((time.perf_counter() - start) / repeats[name])
            after_call()
    return taken


def objection(contender: Contender, length: int, causal: bool, patience: float = PATIENCE) -> str | None:
    """Why this contender is left out at this length, judged by a quarter and half of it; None if it may run."""
    if length <= UNPROBED:
        return None
    try:
        quarter, half = (seconds_of(contender.make(n, causal).train) for n in (length // 4, length // 2))
        expected = half * min(max(half / quarter, 2), 4)  # linear to quadratic
        if expected > patience:
            return f"about {expected:.0f} s a call"
        contender.make(length, causal).train()
    except (RuntimeError, MemoryError) as error:
        if "memory" not in str(error) and not isinstance(error, MemoryError):
            raise
        return "out of memory"
    return None


def race(
    contenders: Iterable[Contender],
    length: int,
    causal: bool,
    rounds: int,
    passes: Sequence[str] = (FORWARD, TRAINING),
    patience: float = PATIENCE,
    after_call: Callable = lambda: None,
) -> tuple[list[dict], list[dict]]:
    """Times contenders against one another at one length: a row per contender and pass, and who was left out."""
    place = {"length": length, "direction": "causal" if causal else "bidirectional"}
    running, left_out = [], []
    for contender in contenders:
        if reason := objection(contender, length, causal, patience):
            left_out.append({"contender": contender.name, **place, "reason": reason})
        else:
            running.append(contender)
    names = {contender.name for contender in running}
    missing = [contender for contender in running if contender.against not in names]
    left_out += [{"contender": c.name, **place, "reason": f"{c.against} is left out"} for c in missing]
    running = [contender for contender in running if contender not in missing]
    work, rows = {contender.name: contender.make(length, causal) for contender in running}, []
    for name in passes if running else ():
        calls = {key: (w.infer if name == FORWARD else w.train) for key, w in work.items()}
        seconds = interleave(calls, rounds, after_call)
        for c in running:
            speedup = ratio(seconds[c.against], seconds[c.name])._asdict()
            row = {"contender": c.name, "against": c.against, **place, "pass": name, "speedup": speedup}
            rows.append({**row, "seconds": seconds[c.name]})
    return rows, left_out


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
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # or what the warm-up has freed, a whole model at worst, would count as idle
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    idle, work = _resident("VmRSS"), contender.make(length, causal)
    work.infer()
    forward = _resident("VmHWM") - idle
    work.train()
    return {FORWARD: forward, TRAINING: _resident("VmHWM") - idle}


def _resident(field: str) -> int:
    """Not ru_maxrss, which a child inherits from its parent."""
    return _kilobytes("/proc/self/status", field) * 1024


def limit_memory() -> None:
    """What needs more memory than there is fails, and is left out, instead of having the process killed."""
    if Path("/proc/meminfo").exists():
        limit = (_kilobytes("/proc/self/status", "VmData") + 0.9 * _kilobytes("/proc/meminfo", "MemAvailable")) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit), resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _kilobytes(file: str, field: str) -> int:
    line = next(line for line in Path(file).read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])


def environment() -> dict:
    """What a figure depends on."""
    cpu = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "allocator": "keeps freed memory" if KEEP_MEMORY.items() <= os.environ.items() else "default",
    }


def _commit() -> str | None:
    """The commit checked out, "-dirty" if the tree differs from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def describe_environment(environment: dict) -> str:
    return (
        "{cpu} ({vectors}), {threads} threads, torch {torch}, allocator: {allocator}, {date}, commit {commit}".format(
            **environment
        )
    )


# The command line.


def positive(text: str) -> int:
    """An argument that must be a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer.")
    return int(text)


def significant(x: float) -> str:
    """Three digits or so: 0.083, 1.92, 28.4, 113."""
    return f"{x:.{3 if abs(x) < 0.1 else 2 if abs(x) < 10 else 1 if abs(x) < 100 else 0}f}"


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str | None = None) -> str:
    """Aligned columns, "<" to the left and ">" to the right; by default the first to the left, the others right."""
    rows, align = [list(header), *(list(row) for row in rows)], align or "<" + ">" * (len(header) - 1)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    columns = list(zip(align, widths, strict=True))
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, (side, width) in zip(row, columns, strict=True)).rstrip()
        for row in rows
    )


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Progress:
    """A bar on a terminal; in a log file, where a bar would be a mess, a line per step."""

    def __init__(self, total: int):
        self.bar = tqdm(total=total, disable=None, smoothing=0)  # None: on a terminal only

    def say(self, text: str) -> None:
        if self.bar.disable:
            print(text, file=sys.stderr, flush=True)
        else:
            self.bar.set_description(text)

    def advance(self, steps: int = 1) -> None:
        self.bar.update(steps)

    def close(self) -> None:
        self.bar.close()
