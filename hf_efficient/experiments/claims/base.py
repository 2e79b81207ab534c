"""What a claim is: what a paper says, and what is measured to decide it.

A claim is one file of this folder, and says nothing but that: source, words, figures, parts, statements. A part
measures its arms, and each measurement is a sample of an arm: metric -> seed or round -> value. A statement compares
two arms by one metric; all statements of a claim together are its verdict (`verdicts.py`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...training.budget import Budget
from ..repetitions import ExperimentError
from .record import Record


@dataclass(frozen=True)
class Options:
    """How a claim is run.

    Args:
        quick: on tiny embedded data, in seconds: whether it runs at all, and nothing else.
        budget: of each training, instead of the claim's.
        seeds: of each training, and rounds of what is timed, instead of the claim's.
        first_seed: seeds are this one and those after it.
        folder: of the runs.
        jobs: trainings at a time, each with one thread.
    """

    quick: bool = False
    budget: str | None = None
    seeds: int | None = None
    first_seed: int = 0
    folder: Path = Path("runs/claims")
    jobs: int = 1

    def seeds_or(self, usual: int) -> range:
        return range(self.first_seed, self.first_seed + (1 if self.quick else self.seeds or usual))


@dataclass(frozen=True)
class Cost:
    """What running a part takes: so many minutes of one core, for each arm and seed."""

    minutes: float
    arms: int
    seeds: int

    @property
    def total(self) -> float:
        return self.minutes * self.arms * self.seeds

    def __str__(self) -> str:
        return f"{self.minutes:g} min x {self.arms} x {self.seeds}"


class Part:
    """Some arms that are measured in the same way.

    Args:
        name: put before the names of its arms, as "cifar10/softmax"; "" where there is one part only.
        data: names of the data sets that it needs, when it is not quick.
    """

    name: str
    data: Sequence[str] = ()

    def cost(self, options: Options) -> Cost:
        raise NotImplementedError

    def run(self, record: Record, options: Options) -> None:
        """Measures what the record does not have, and saves it as soon as it is known."""
        raise NotImplementedError

    def label(self, arm: str) -> str:
        return f"{self.name}/{arm}" if self.name else arm


@dataclass(frozen=True)
class Statement:
    """One comparison: metric of arm `b` over that of `a`, as b/a or b − a, is more (or less) than a bound.

    Args:
        says: in words.
        metric: of the samples.
        a, b: arms.
        more: whether it should be more than the bound, rather than less.
        bound: by default no difference.
        ratio: b/a rather than b − a.
        paper: the paper's figures for these two, if it has any.
    """

    says: str
    metric: str
    a: str
    b: str
    more: bool
    ratio: bool = False
    bound: float | None = None
    paper: str = "none"

    @property
    def limit(self) -> float:
        return (1.0 if self.ratio else 0.0) if self.bound is None else self.bound


@dataclass(frozen=True)
class Claim:
    """
    Args:
        name: of its file and its JSON.
        source: paper, and table or section.
        says: in a sentence or two.
        figures: the paper's, in a few words.
        decided: how it is decided here, and what differs from the paper.
        parts: what is measured.
        statements: what must hold.
        shown: metrics of the table of all arms: metric -> header.
    """

    name: str
    source: str
    says: str
    figures: str
    decided: str
    parts: tuple[Part, ...]
    statements: tuple[Statement, ...]
    shown: dict[str, str] = field(default_factory=dict)

    def cost(self, options: Options) -> list[Cost]:
        return [part.cost(options) for part in self.parts]

    def data(self) -> list[str]:
        return sorted({name for part in self.parts for name in part.data})


def against(
    rivals: Iterable[str],
    best: str,
    metric: str,
    says: str,
    paper: dict[str, str] | None = None,
    more: bool = True,
    **options,
) -> tuple[Statement, ...]:
    """ "best is better than rival", for each rival; `says` has a place for it: "... than {}"."""
    return tuple(
        Statement(
            says.format(rival.split("/")[-1]),
            metric,
            rival,
            best,
            more,
            paper=(paper or {}).get(rival, "none"),
            **options,
        )
        for rival in rivals
    )


def minutes_of(budget: str) -> float:
    found = Budget.parse(budget)
    if found.kind != "seconds":
        raise ExperimentError(f"budget={budget!r} must be a time, such as 2min: energies follow from it.")
    return found.amount / 60
