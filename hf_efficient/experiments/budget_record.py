"""What is known of runs of equal budgets: paces, numbers of steps, scores. One JSON file, added to run by run.

The file goes where the figures are published, and a comparison goes on with it on any machine: numbers of steps are
fixed in it, and what has a score is not run again.
"""

import csv
import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from ..training.budget import Budget
from ..training.checkpoints import replace_file
from ..training.configs import FOLDER
from ..training.history import FILE as HISTORY
from .repetitions import RESULTS, ExperimentError, Repetition, Variant
from .statistics import compare_all, summarize


@dataclass(frozen=True)
class Pace:
    """What a run's steps take, on the machine and with the threads that it was rehearsed with."""

    seconds_per_step: float
    watts: float | None  # None where energy can't be measured
    method: str  # how the watts are known
    threads: int

    def steps(self, budget: Budget) -> int:
        each = self.seconds_per_step
        if budget.kind == "joules":
            if self.watts is None:
                raise ExperimentError("a budget of energy needs codecarbon: pip install 'hf-efficient[energy]'.")
            each *= self.watts
        return max(1, int(budget.amount / each))


@dataclass
class Arm:
    """One of the runs that are compared.

    Args:
        settings: its config and what was set besides.
        config_sha256: of the config's content: another content is another run.
        pace, steps: fixed by the rehearsal.
        scores: by seed.
        metrics: by seed, all that was measured on the split of the scores.
        curves: by seed, what validation said meanwhile: (step, metric).
    """

    settings: list[str]
    config_sha256: str
    pace: Pace | None = None
    steps: int = 0
    scores: dict[int, float] = field(default_factory=dict)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    curves: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, variant: Variant, common: list[str]) -> "Arm":
        config = variant.config.stem if variant.config.parent == FOLDER else str(variant.config)
        sha256 = hashlib.sha256(variant.config.read_bytes()).hexdigest()
        return cls([config, *common, *variant.overrides], sha256)

    def to_json(self) -> dict:
        seconds = self.steps * self.pace.seconds_per_step
        joules = None if self.pace.watts is None else seconds * self.pace.watts
        summary = asdict(summarize(list(self.scores.values()))) if self.scores else None
        return {**asdict(self), "seconds": seconds, "joules": joules, "summary": summary}

    @classmethod
    def from_json(cls, found: dict) -> "Arm":
        arm = cls(**{each.name: found.get(each.name, {}) for each in fields(cls)})  # the first records had no curves
        arm.pace = Pace(**arm.pace)
        for name in ("scores", "metrics", "curves"):
            setattr(arm, name, {int(seed): x for seed, x in getattr(arm, name).items()})
        return arm


@dataclass
class Record:
    """All arms of one comparison; the first is what the others are measured against."""

    budget: str
    metric: str = ""
    commands: list[str] = field(default_factory=list)
    arms: dict[str, Arm] = field(default_factory=dict)

    @classmethod
    def load(cls, file: Path, budget: str) -> "Record":
        """Of a file, if there is one; it must be of the same budget."""
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            record = cls(found["budget"], found["metric"], found["commands"])
            record.arms = {name: Arm.from_json(arm) for name, arm in found["arms"].items()}
        except FileNotFoundError:
            return cls(budget)
        except (ValueError, KeyError, TypeError) as error:
            raise ExperimentError(f"{file} is no record of a comparison ({error!r}): name another file.") from error
        if record.budget != budget:
            raise ExperimentError(f"{file} is of runs of {record.budget}, not of {budget}: name another file.")
        return record

    def has(self, name: str, arm: Arm) -> bool:
        """Whether it is there; if another run goes by its name, that is an error."""
        known = self.arms.get(name)
        if known is None:
            return False
        if (known.settings, known.config_sha256) != (arm.settings, arm.config_sha256):
            raise ExperimentError(
                f"{name} was run with another config or other settings ({' '.join(known.settings)}): give it another "
                "name (name=config), or start a new record."
            )
        return True

    def add(self, name: str, arm: Arm, pace: Pace) -> None:
        arm.pace, arm.steps = pace, pace.steps(Budget.parse(self.budget))
        self.arms[name] = arm

    def add_score(self, repetition: Repetition, metric: str, metrics: dict[str, float]) -> None:
        if self.metric not in ("", metric):
            raise ExperimentError(f"runs are judged by {self.metric} and by {metric}: they can't be compared.")
        self.metric, arm = metric, self.arms[repetition.variant.name]
        arm.scores[repetition.seed] = metrics[metric]
        arm.metrics[repetition.seed] = metrics
        arm.curves[repetition.seed] = curve(repetition, metric)

    def add_command(self, command: str) -> None:
        if command not in self.commands:
            self.commands.append(command)

    def to_json(self) -> dict:
        arms = {name: arm.to_json() for name, arm in self.arms.items()}
        samples = {name: arm.scores for name, arm in self.arms.items() if arm.scores}
        differences = [asdict(pair) for pair in compare_all(samples, ratio=False)]
        head = {"budget": self.budget, "metric": self.metric, "commands": self.commands}
        return {**head, "arms": arms, "differences": differences}

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, json.dumps(self.to_json(), indent=2) + "\n")


def score(repetition: Repetition) -> tuple[str, dict[str, float]]:
    """The metric that a run was judged by, and all metrics, of the split by which nothing was chosen."""
    try:
        results = json.loads((repetition.folder / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{repetition.label} left no readable {RESULTS}: {error}") from error
    wanted = (results["metric_for_best_model"] or "loss").removeprefix("eval_")
    for split in ("test_", "eval_"):
        if results["metrics"].get(f"{split}{wanted}") is not None:
            return f"{split}{wanted}", {name: x for name, x in results["metrics"].items() if name.startswith(split)}
    raise ExperimentError(f"{repetition.label} has no {wanted} in its {RESULTS}.")


def curve(repetition: Repetition, metric: str) -> list[tuple[int, float]]:
    """What the validation split said in the course of a run: (step, metric)."""
    column = f"eval_{metric.partition('_')[2]}"
    try:
        with (repetition.folder / HISTORY).open(encoding="utf-8", newline="") as file:
            return [(int(row["step"]), float(row[column])) for row in csv.DictReader(file) if row.get(column)]
    except OSError:  # a picture less, which is no reason to lose a score
        return []
