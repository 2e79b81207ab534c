"""A part whose arms are calls: timed in turns, round by round, and their peak memory in processes of their own.

All arms of a case (a length, a range of values) take turns, so that each round is a pair of any two of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..process_memory import limited_memory, peaks
from ..timing import interleave, seconds_of
from .base import Cost, Options, Part
from .record import Record

MORE_THAN_THERE_IS = "out of memory"


@dataclass(frozen=True)
class Case:
    """What is timed side by side.

    Args:
        name: as "N=1,000".
        make: arm -> makes the call; can be pickled where memory is measured.
        warm: the same but tiny, of the memory's process.
        smaller: calls whose times tell, before it is made, how long one of `make` takes: (calls, cost of the case in
            units of them). What takes longer than `patience` is left out.
    """

    name: str
    make: dict[str, Callable[[], Callable]]
    warm: dict[str, Callable[[], Callable]] = field(default_factory=dict)
    smaller: tuple[dict[str, Callable[[], Callable]], float] | None = None


@dataclass(frozen=True)
class Timed(Part):
    """
    Args:
        cases: the cases, given whether they are to be quick.
        arms: how many there are.
        minutes: what a round of all cases takes, for each arm, about.
        rounds: how many, usually.
        metrics: "seconds", and "bytes" if peak memory is wanted.
        patience: seconds that a call may take.
        figures: "seconds", or "per second".
    """

    name: str
    cases: Callable[[bool], list[Case]]
    arms: int
    minutes: float
    rounds: int = 5
    metrics: tuple[str, ...] = ("seconds",)
    patience: float = 20.0
    figures: str = "seconds"
    data: tuple[str, ...] = ()

    def cost(self, options: Options) -> Cost:
        return Cost(self.minutes, self.arms, len(options.seeds_or(self.rounds)))

    def run(self, record: Record, options: Options) -> None:
        cases = self.cases(options.quick)
        for case in cases:
            self.time(case, record, options)
        if "bytes" in self.metrics:
            for case in cases[: 1 if options.quick else None]:  # each arm is a process
                self.weigh(case, record, options)

    def time(self, case: Case, record: Record, options: Options) -> None:
        metric = f"{self.figures}, {case.name}"
        done = [self.known(arm, metric, record) for arm in case.make]
        if all(done):
            return
        print(f"{self.name or record.claim}: {metric}", flush=True)
        with limited_memory():
            calls = {}
            for arm in case.make:
                reason = objection(case, arm, self.patience)
                if reason is None:
                    try:
                        calls[arm] = case.make[arm]()
                        calls[arm]()
                    except (RuntimeError, MemoryError) as error:
                        reason = memory_error(error)
                        calls.pop(arm, None)
                if reason:
                    self.leave_out(arm, metric, reason, record)
            seconds = interleave(calls, len(options.seeds_or(self.rounds))) if calls else {}
        for arm, taken in seconds.items():
            values = [1 / x if self.figures == "per second" else x for x in taken]
            for number, value in enumerate(values):
                record.add(self.label(arm), number, {metric: value})

    def weigh(self, case: Case, record: Record, options: Options) -> None:
        metric, rounds = f"bytes, {case.name}", len(options.seeds_or(self.rounds))
        arms = list(case.make)[: 1 if options.quick else None]
        for arm in arms:
            make, label = case.make[arm], self.label(arm)
            if self.known(arm, metric, record):
                continue
            if reason := record.arm(label).get("left_out", {}).get(f"{self.figures}, {case.name}"):
                self.leave_out(arm, metric, reason, record)
                continue
            found = peaks(make, case.warm.get(arm, make), rounds)
            if isinstance(found, str):
                self.leave_out(arm, metric, found, record)
            else:
                for number, value in enumerate(found):
                    record.add(label, number, {metric: value})

    def known(self, arm: str, metric: str, record: Record) -> bool:
        found = record.arm(self.label(arm))
        return metric in found["samples"] or metric in found.get("left_out", {})

    def leave_out(self, arm: str, metric: str, reason: str, record: Record) -> None:
        record.add(self.label(arm), 0, {}, left_out={metric: reason})
        print(f"{self.label(arm)}: left out of {metric}: {reason}", flush=True)


def objection(case: Case, arm: str, patience: float) -> str | None:
    """Why it is not called in this case, judged by a smaller one; None if it may be."""
    if case.smaller is None or arm not in case.smaller[0]:
        return None
    makes, factor = case.smaller
    try:
        call = makes[arm]()
        call()
        expected = factor * seconds_of(call)
    except (RuntimeError, MemoryError) as error:
        return memory_error(error)
    return f"about {expected:.0f} s a call" if expected > patience else None


def memory_error(error: Exception) -> str:
    """If it is one; else it is raised again."""
    if "memory" not in str(error) and not isinstance(error, MemoryError):
        raise error
    return MORE_THAN_THERE_IS
