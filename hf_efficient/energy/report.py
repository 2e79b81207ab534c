"""One record of the energy that a run took, and its readers: JSON, Markdown, the model card's emissions.

Energies are joules. A row is what one rank counted in one phase of one epoch; ranks count each thing once
(`counted_by`), so that sums over rows are sums over machines.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from .options import JOULES_PER_KWH

COMPONENTS = ("cpu", "gpu", "ram")
PHASES = ("train", "eval", "inference")
TRAINING = ("train", "eval")  # what a model's emissions are made of
METHODS = {
    "measured": "measured",
    "load": "estimated from load",
    "constant": "constant, not measured",
}
FILE = "energy.json"
VERSION = 1


@dataclass(frozen=True)
class Component:
    """How a component's energy is known."""

    name: str  # cpu, gpu or ram
    method: str  # a key of METHODS
    detail: str  # the counter, or the formula
    scope: str  # "machine", "process" or "devices"

    def __str__(self) -> str:
        return f"{self.name.upper()} {METHODS[self.method]} ({self.detail})"


@dataclass(frozen=True)
class Row:
    """Of one rank in one phase of one epoch (from 1 on; 0 = of none)."""

    phase: str
    epoch: int
    rank: int = 0
    seconds: float = 0.0
    cpu: float = 0.0  # joules
    gpu: float = 0.0
    ram: float = 0.0
    items: float = 0.0  # images or tokens, of all ranks, in rank 0's row

    @property
    def joules(self) -> float:
        return self.cpu + self.gpu + self.ram


@dataclass(frozen=True)
class Baseline:
    """What a rank's machine drew at rest, in watts."""

    rank: int
    seconds: float
    cpu: float
    gpu: float
    ram: float

    @property
    def watts(self) -> float:
        return self.cpu + self.gpu + self.ram


@dataclass(frozen=True)
class EnergyReport:
    """
    Args:
        run: tells one run from another over restarts.
        unit: what an item is, "image" or "token".
        rows, baselines: see Row and Baseline.
        components: how each component's energy is known; empty = nothing was measured but time.
        tracker, hardware: what measured what.
        scope: "machine" or "process", as asked for; each component says its own.
        country, location, grams_per_kwh, grid: where the electricity came from, and what that means in CO2e.
        interval: seconds between readings.
        restarts: how often the run was taken up again.
        lost: joules of work that was lost when the run was killed, and done again; spent, and so part of all sums.
        budget: joules after which training was to stop; None = no budget.
        stopped_by_budget, finished: how training ended.
        alarms: why these numbers may be wrong, by a short name (`plausibility`).
    """

    run: str
    unit: str = "image"
    rows: tuple[Row, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    components: tuple[Component, ...] = ()
    tracker: str = ""
    hardware: str = ""
    scope: str = "machine"
    country: str | None = None
    location: str = "country not stated"
    grams_per_kwh: float | None = None
    grid: str = ""
    interval: float = 5.0
    restarts: int = 0
    lost: float = 0.0
    budget: float | None = None
    stopped_by_budget: bool = False
    finished: bool = False
    alarms: dict[str, str] = field(default_factory=dict)

    # Sums

    def select(self, phases: str | Iterable[str] = TRAINING, epoch: int | None = None) -> list[Row]:
        phases = (phases,) if isinstance(phases, str) else tuple(phases)
        return [row for row in self.rows if row.phase in phases and epoch in (None, row.epoch)]

    def joules(self, phases=TRAINING, epoch: int | None = None, component: str = "joules") -> float | None:
        """Gross, over all ranks; None if nothing was measured."""
        return sum(getattr(row, component) for row in self.select(phases, epoch)) if self.components else None

    def kwh(self, phases=TRAINING) -> float | None:
        return None if (joules := self.joules(phases)) is None else joules / JOULES_PER_KWH

    def net_joules(self, phases=TRAINING, epoch: int | None = None) -> float | None:
        """What the machine would not have drawn at rest; None without a baseline of every rank that counts."""
        idle = {baseline.rank: baseline for baseline in self.baselines}
        rows = self.select(phases, epoch)
        if not self.components or not all(row.rank in idle for row in rows) or not rows:
            return None
        return sum(
            max(0.0, getattr(row, name) - getattr(idle[row.rank], name) * row.seconds)
            for row in rows
            for name in COMPONENTS
        )

    def seconds(self, phases=TRAINING, epoch: int | None = None) -> float:
        """As ranks work side by side, the longest's."""
        by_rank: dict[int, float] = {}
        for row in self.select(phases, epoch):
            by_rank[row.rank] = by_rank.get(row.rank, 0.0) + row.seconds
        return max(by_rank.values(), default=0.0)

    def items(self, phases=TRAINING, epoch: int | None = None) -> float:
        return sum(row.items for row in self.select(phases, epoch))

    def joules_per_item(self, phases, epoch: int | None = None) -> float | None:
        items, joules = self.items(phases, epoch), self.joules(phases, epoch)
        return joules / items if items and joules is not None else None

    def grams(self, phases=TRAINING, epoch: int | None = None) -> float | None:
        """Of CO2e: the grid's carbon intensity times the energy (HuggingGreen, section V.A)."""
        joules = self.joules(phases, epoch)
        if joules is None or self.grams_per_kwh is None:
            return None
        return joules / JOULES_PER_KWH * self.grams_per_kwh

    @property
    def phases(self) -> list[str]:
        return [phase for phase in PHASES if any(row.phase == phase for row in self.rows)]

    def steps(self) -> list[tuple[str, int]]:
        """Phase and epoch of each line of the table, in order; what belongs to no epoch comes last."""
        steps = {(row.phase, row.epoch) for row in self.rows}
        return sorted(steps, key=lambda step: (not step[1], step[1], PHASES.index(step[0])))

    def summary(self) -> dict:
        return {
            "kwh": self.kwh(),
            "seconds": self.seconds(),
            "grams_co2e": self.grams(),
            "net_kwh": None if (net := self.net_joules()) is None else net / JOULES_PER_KWH,
            **{f"{phase}_kwh": self.kwh(phase) for phase in self.phases},
            **{f"{phase}_joules_per_{self.unit}": self.joules_per_item(phase) for phase in self.phases},
        }

    # Readers

    def to_dict(self) -> dict:
        return {"version": VERSION, "summary": self.summary(), **asdict(self)}

    @classmethod
    def from_dict(cls, record: dict) -> "EnergyReport":
        if record.get("version") != VERSION:
            raise ValueError(f"can't read an energy report of version {record.get('version')!r}, only {VERSION}.")
        values = {item.name: record[item.name] for item in fields(cls)}
        for name, kind in (("rows", Row), ("baselines", Baseline), ("components", Component)):
            values[name] = tuple(kind(**entry) for entry in values[name])
        return cls(**values)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "EnergyReport":
        return cls.from_dict(json.loads(text))

    def save(self, path: str | Path) -> None:
        """Whole or not at all: what was there stays until the new file is complete."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.part")  # always the same: a killed run leaves one behind at most
        scratch.write_text(self.to_json(), encoding="utf-8")
        os.replace(scratch, path)

    @classmethod
    def load(cls, path: str | Path) -> "EnergyReport":
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not an energy report: {error}") from error

    def co2_eq_emissions(self, training_type: str = "pre-training") -> dict | None:
        """For a model card's metadata, in grams; None if nothing was measured."""
        grams = self.grams()
        if grams is None:
            return None
        methods = ", ".join(f"{part.name.upper()} {METHODS[part.method]}" for part in self.components)
        return {
            "emissions": float(f"{grams:.4g}"),
            "source": f"{self.tracker}: {methods}; scope: {self.scope}; {self.grams_per_kwh:g} g/kWh ({self.grid})",
            "training_type": training_type,
            "geographical_location": self.location,
            "hardware_used": self.hardware,
        }

    def to_markdown(self) -> str:
        from .markdown import write_report

        return write_report(self)

    def to_card(self) -> str:
        """The same in short, for a model card."""
        from .markdown import write_summary

        return write_summary(self)

    def plot(self, path: str | Path) -> None:
        """Draws energy by epoch, phase and component into a PNG."""
        from .plots import plot_report

        plot_report(self, path)

    def with_rows_of(self, others: Iterable["EnergyReport"]) -> "EnergyReport":
        """With the rows and alarms of other ranks beside this one's."""
        others = list(others)
        return replace(
            self,
            rows=self.rows + tuple(row for other in others for row in other.rows),
            baselines=self.baselines + tuple(idle for other in others for idle in other.baselines),
            lost=self.lost + sum(other.lost for other in others),
            alarms={name: alarm for report in (*others, self) for name, alarm in report.alarms.items()},
            components=self.components or next((other.components for other in others if other.components), ()),
        )


def counted_by(measured: list[dict[str, str]], rank: int) -> set[str]:
    """The components that a rank counts, given what each rank's tracker measures (component -> name of that thing).

    Ranks on one machine all measure that machine, which must count once: of the ranks that measure the same thing,
    the first counts it. Ranks on different machines, or with devices of their own, count their own.
    """
    before = measured[:rank]
    return {part for part, thing in measured[rank].items() if all(other.get(part) != thing for other in before)}
