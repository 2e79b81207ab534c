"""How time is measured: in interleaved rounds, as ratios instead of seconds.

Time on a shared machine means little; the ratio of two times taken in the same round means a lot. So every contender
runs once per round, beside what it is compared with, and what counts is the median of the rounds' ratios.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.tables import significant
from benchmarks.workloads import FORWARD, TRAINING, Contender
from hf_efficient.experiments.timing import interleave, seconds_of

PATIENCE = 20.0  # seconds that one call may take
UNPROBED = 512  # up to this length every contender is fast enough to be called without asking


class Ratio(NamedTuple):
    """Median and quartiles of the per-round ratio."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{significant(self.median)} [{significant(self.low)} {significant(self.high)}]"

    @property
    def quartiles(self) -> str:
        return f"quartiles {significant(self.low)} {significant(self.high)}"


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


def crossover_text(lengths: Sequence[int], speedups: Sequence[float]) -> str:
    at = crossover(lengths, speedups)
    if math.isinf(at):
        ever = any(speedup > 1 for speedup in speedups)
        return f"slower at {lengths[-1]}" if ever else f"always slower up to {lengths[-1]}"
    return f"from the shortest on ({lengths[0]})" if at == lengths[0] else f"{float(f'{at:.2g}'):.0f}"


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
