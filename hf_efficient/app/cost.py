"""What one image costs a model: tokens, operations, time, and an estimate of energy."""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ..energy.machine import RaplCounters
from .clock import clock

ROUNDS = 9
BATCH = 16  # images at a time, where that takes no longer than
LONGEST_BATCH = 0.5  # seconds
WATTS_PER_THREAD = 4.0  # what codecarbon takes for a processor that it doesn't know
ASSUMED = (
    "Joules are an estimate: the time times {watts:g} W, {per_thread:g} W for each thread that computes (here "
    "{threads}), which is what codecarbon takes for a processor that it doesn't know. There is no energy counter here."
)
COUNTED = (
    "Joules are the time times {watts:.3g} W, the average by the processor's own counters (RAPL) while this was "
    "timed: they count all that the machine did meanwhile."
)
HOW = (
    "GFLOPs count matrix products, attention and convolutions, a multiplication and an addition as two. Milliseconds: "
    f"the median of {ROUNDS} passes over this one image, the variants taking turns, the choice of patches included."
)
IN_BATCH = f" A small image alone keeps no processor busy: a batch of {BATCH} shows what dropped patches spare."


class Cost(NamedTuple):
    tokens: int
    gflops: float
    milliseconds: float
    joules: float
    in_batch: float | None  # milliseconds of each of a batch, unless that takes too long


class Measured(NamedTuple):
    costs: dict[str, Cost]
    method: str  # in words


def flops(call: Callable[[], object]) -> int:
    attention = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=attention) as counter:
        call()
    return counter.get_total_flops()


def _attention_flops(query, key, value, *_, **__) -> int:
    return sdpa_flop_count(query, key, value)


@torch.no_grad()
def seconds(calls: Mapping[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """The median of each; they take turns, so that what else the machine does falls on all."""
    taken = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = clock()
            call()
            taken[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def measure(calls: Mapping[str, Callable[[int], object]], tokens: Mapping[str, int]) -> Measured:
    """The costs of several ways to look at so many copies of one image."""
    counters, start = RaplCounters(), time.perf_counter()
    times = seconds(with_size(calls, 1))
    lasted, counted = time.perf_counter() - start, counters.read()
    threads = torch.get_num_threads()
    if counted:
        watts, method = counted / lasted, COUNTED
    else:
        watts, method = WATTS_PER_THREAD * threads, ASSUMED
    batched = seconds(with_size(calls, BATCH)) if max(times.values()) * BATCH < LONGEST_BATCH else {}
    costs = {
        name: Cost(
            tokens[name],
            flops(call) / 1e9,
            1e3 * times[name],
            times[name] * watts,
            1e3 * batched[name] / BATCH if batched else None,
        )
        for name, call in with_size(calls, 1).items()
    }
    said = method.format(watts=watts, per_thread=WATTS_PER_THREAD, threads=threads)
    return Measured(costs, f"{HOW}{IN_BATCH if batched else ''} {said}")


def with_size(calls: Mapping[str, Callable[[int], object]], size: int) -> dict[str, Callable[[], object]]:
    return {name: partial(call, size) for name, call in calls.items()}
