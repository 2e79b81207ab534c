"""How time is measured: in interleaved rounds, so that what else the machine does meets all contenders alike."""

import math
import time
from collections.abc import Callable

import torch

SLOW_CALL, FEW_ROUNDS = 4.0, 3  # long calls are steadier, and dear: fewer rounds will do
LONGEST_TURN, MOST_CALLS = 0.02, 20  # short calls are repeated within a round until their turn is this long


def clock() -> float:
    """With one thread the processor's time, which runs while the program does and not while it waits for others."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def seconds_of(call: Callable[[], object]) -> float:
    start = clock()
    call()
    return clock() - start


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
            start = clock()
            for _ in range(repeats[name]):
                calls[name]()
            taken[name].append((clock() - start) / repeats[name])
            after_call()
    return taken
