"""A part whose arms are trainings: each is a config and what is set besides, in equal steps, time or energy.

All arms are rehearsed in turns on a machine that should be quiet, which fixes their numbers of steps; then every arm
is trained with every seed, by `hf-efficient train` in a process of its own, and goes on where it was stopped.
"""

import hashlib
import io
import json
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

from ...extras import require
from ...training.configs import find_config
from ...training.launch import finite
from ...training.tasks import train
from ..budget_record import Pace, curve
from ..equal_budgets import rehearse, rehearse_beside
from ..repetitions import RESULTS, ExperimentError, Repetition, Variant, finish, is_finished, plan
from .base import Cost, Options, Part, minutes_of
from .record import Record

QUICK_BUDGET = "0.1s"
REHEARSAL = "rehearsal"


@dataclass(frozen=True)
class Stage:
    """One training of an arm: its config, what is set besides, its share of the arm's budget, what makes it quick."""

    config: str
    settings: tuple[str, ...] = ()
    share: float = 1.0
    quick: tuple[str, ...] = ()


def run(config: str, share: float = 1.0, quick: tuple[str, ...] = (), **settings) -> Stage:
    """`run("cifar10_vit_small", learning_rate=1e-3)`; keys with a dot are given as `**{"dataset.limit": 9}`."""
    words = [word for key, value in settings.items() for word in (f"--{key}", shown(value))]
    return Stage(config, tuple(words), share, quick)


def shown(value) -> str:
    """As YAML reads it."""
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Trained(Part):
    """
    Args:
        arms: name -> its trainings, one after the other, each from what the one before learned.
        equal: what all arms get alike: "steps", "time" or "energy".
        budget: the time of the first arm; the others follow from `equal`.
        seeds: how many, usually.
        quick: what is set in all runs to make them tiny, without data that do not come along.
        reads_energy: whether joules are a metric, as each run has measured them: then runs are made one at a time,
            and one that was interrupted starts anew, since energy that went into lost work would count.
        after: what else is measured of a trained model: (folder, quick) -> metric -> value.
        derived: what follows from curves and paces, asked when all is trained.
        dearer: what the mean arm takes over the first, about, where steps are equal.
        beside: minutes of a run that are no training, about: imports, data, evaluation.
    """

    name: str
    arms: dict[str, tuple[Stage, ...]]
    equal: str
    budget: str
    seeds: int = 3
    quick: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    reads_energy: bool = False
    after: Callable[[Path, bool], dict[str, float]] | None = None
    derived: Callable[[Record, "Trained"], None] | None = None
    dearer: float = 1.0
    beside: float = 0.5

    def cost(self, options: Options) -> Cost:
        minutes = minutes_of(self.budget_of(options)) * (self.dearer if self.equal == "steps" else 1)
        return Cost(round(minutes + self.beside, 1), len(self.arms), len(options.seeds_or(self.seeds)))

    def budget_of(self, options: Options) -> str:
        return options.budget or (QUICK_BUDGET if options.quick else self.budget)

    def run(self, record: Record, options: Options) -> None:
        self.fix_steps(record, options)
        left = [
            (name, seed)
            for seed in options.seeds_or(self.seeds)
            for name in self.arms
            if not record.has(self.label(name), seed)
        ]
        jobs = 1 if self.reads_energy or options.quick else options.jobs
        if jobs == 1:
            for name, seed in left:
                self.train(name, seed, record, options)
        else:
            with ThreadPoolExecutor(jobs) as pool:
                list(pool.map(lambda pair: self.train(*pair, record, options), left))
        if self.derived is not None:
            self.derived(record, self)

    # ---- budgets ----

    def fix_steps(self, record: Record, options: Options) -> None:
        """The steps of each stage, of all arms that have none yet."""
        budget = self.budget_of(options)
        record.set_budget(self.name, budget)
        missing = [name for name in self.arms if "steps" not in record.arm(self.label(name))]
        for name in self.arms:
            if name not in missing:
                self.check_same(name, record, options)
        if not missing:
            return
        words = {
            f"{name} {number}": (stage.config, self.words(stage, options))
            for name in missing
            for number, stage in enumerate(self.arms[name])
        }
        if self.equal == "energy" and not options.quick:
            require("train", "energy")
        folder, brief = options.folder / REHEARSAL, {"rounds": 1, "seconds": 0.02} if options.quick else {}
        first = next(iter(self.arms))
        if first in missing:
            paces = rehearse(words, folder, **brief)
            pace = paces[f"{first} 0"]
        else:
            pace, stage = Pace(**record.arm(self.label(first))["paces"][0]), self.arms[first][0]
            yardstick = (stage.config, self.words(stage, options))
            paces = rehearse_beside(pace, yardstick, words, folder, **brief)
        for name in missing:
            own = [paces[f"{name} {number}"] for number in range(len(self.arms[name]))]
            steps = [
                self.steps(pace, each, stage.share, budget) for each, stage in zip(own, self.arms[name], strict=True)
            ]
            arm = record.arm(self.label(name))
            arm |= {"command": self.command(name, steps, options), "configs": self.configs(name)}
            arm |= {"steps": steps, "paces": [asdict(x) for x in own]}
            arm["seconds"] = sum(x.seconds_per_step * n for x, n in zip(own, steps, strict=True))
            watts = [each.watts for each in own]
            known = None not in watts
            joules = sum(x.seconds_per_step * n * x.watts for x, n in zip(own, steps, strict=True)) if known else None
            arm["planned_joules"] = joules
        record.save()

    def configs(self, name: str) -> list[str]:
        """Of the content of each stage's config."""
        return [hashlib.sha256(find_config(stage.config).read_bytes()).hexdigest() for stage in self.arms[name]]

    def check_same(self, name: str, record: Record, options: Options) -> None:
        """An arm that is gone on with must be what it was."""
        arm = record.arm(self.label(name))
        if (arm["command"], arm["configs"]) != (self.command(name, arm["steps"], options), self.configs(name)):
            raise ExperimentError(
                f"{record.file}: {self.label(name)} was run with another config or other settings: name another file "
                "(--record), or remove this one."
            )

    def steps(self, first: Pace, own: Pace, share: float, budget: str) -> int:
        """How many fit."""
        seconds = 60 * share * minutes_of(budget)
        if self.equal == "steps":
            return max(1, int(seconds / first.seconds_per_step))
        if self.equal == "energy" and None not in (first.watts, own.watts):
            seconds *= first.watts / own.watts
        return max(1, int(seconds / own.seconds_per_step))

    def words(self, stage: Stage, options: Options) -> list[str]:
        """What is set beside the config."""
        tiny = ["--disable_tqdm", "true", "--energy.cpu_watts", "10", *self.quick, *stage.quick]
        return [*stage.settings, *(tiny if options.quick else ())]

    def command(self, name: str, steps: Sequence[int], options: Options) -> str:
        """What a reader can run: that of seed 0, stage by stage."""
        lines, before = [], []
        for number, (stage, count) in enumerate(zip(self.arms[name], steps, strict=True)):
            words = [*self.words(stage, options), *before, "--max_steps", str(count), "--seed", "0"]
            if len(steps) > 1:
                folder = f"results/{name}_{number}"
                words += ["--output_dir", folder]
                before = ["--model.pretrained", folder]
            lines.append(shlex.join(["hf-efficient", "train", stage.config, *words]))
        return "\n".join(lines)

    # ---- trainings ----

    def repetitions(self, name: str, seed: int, record: Record, options: Options) -> list[Repetition]:
        """The trainings of an arm, each from the folder of the one before."""
        found, before = [], []
        output = options.folder / record.claim / ("quick" if options.quick else self.budget_of(options)) / self.name
        for number, stage in enumerate(self.arms[name]):
            words = (*self.words(stage, options), *before)
            words += ("--max_steps", str(record.arm(self.label(name))["steps"][number]))
            variant = Variant(
                name if len(self.arms[name]) == 1 else f"{name}_{number}", find_config(stage.config), words
            )
            found += plan([variant], [seed], output)
            before = ["--model.pretrained", str(found[-1].folder)]
        return found

    def train(self, name: str, seed: int, record: Record, options: Options) -> None:
        for repetition in self.repetitions(name, seed, record, options):
            if is_finished(repetition):
                continue
            print(f"{repetition.label}: running", flush=True)
            if options.quick:
                train_here(repetition)
            else:
                if self.reads_energy and repetition.folder.exists():
                    shutil.rmtree(repetition.folder)
                finish(repetition, {**os.environ, "OMP_NUM_THREADS": "1"})
        results = read_results(repetition)
        values = scores(results)
        if self.after is not None:
            values |= self.after(repetition.folder, options.quick)
        metric = (results["metric_for_best_model"] or "loss").removeprefix("eval_")
        facts = {"parameters": results["parameters"], "curves": {str(seed): curve(repetition, f"eval_{metric}")}}
        record.add(self.label(name), seed, values, **facts)
        print(f"{self.label(name)}, seed {seed}: {metric} {values.get(metric)}", flush=True)


def train_here(repetition: Repetition) -> None:
    """In this process, quietly: starting others would take longer than tiny runs do."""
    shutil.rmtree(repetition.folder, ignore_errors=True)
    config, *words = repetition.command[4:] if repetition.command[1] == "-m" else repetition.command[2:]
    with redirect_stdout(io.StringIO()):
        train(config, words)


def read_results(repetition: Repetition) -> dict:
    try:
        return json.loads((repetition.folder / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{repetition.label} left no readable {RESULTS}: {error}") from error


def scores(results: dict) -> dict[str, float]:
    """What a training is judged by: the metrics of the split that chose nothing, and what it took."""
    metrics = {name.removeprefix("eval_"): x for name, x in results["metrics"].items() if name.startswith("eval_")}
    metrics |= {name.removeprefix("test_"): x for name, x in results["metrics"].items() if name.startswith("test_")}
    joules = (results.get("energy") or {}).get("train_kwh")
    taken = {
        "joules": joules and 3.6e6 * joules,
        "train_seconds": results["train_seconds"],
        "train_loss": results["train_loss"],
        "peak_memory": results["peak_memory"],
    }
    return {name: value for name, value in {**metrics, **taken}.items() if finite(value) is not None}


def joules_until(share: float, reference: str) -> Callable[[Record, Trained], None]:
    """Adds how soon each arm reaches that share of the accuracy with which `reference` ends, of the same seed.

    In joules and in steps, by the curves of the validation split. What never gets there counts as its whole run.
    """

    def derive(record: Record, part: Trained) -> None:
        goals = {seed: share * points[-1][1] for seed, points in record.arm(part.label(reference))["curves"].items()}
        for name in part.arms:
            arm = record.arm(part.label(name))
            each = arm["planned_joules"] / sum(arm["steps"]) if arm["planned_joules"] else None
            for seed, points in arm["curves"].items():
                if seed not in goals or not points:
                    continue
                step = next((step for step, value in points if value >= goals[seed]), points[-1][0])
                percent = f"{100 * share:g} %"
                arm["samples"].setdefault(f"steps to {percent}", {})[seed] = step
                if each:
                    arm["samples"].setdefault(f"joules to {percent}", {})[seed] = step * each

    return derive


def one(**arms: Stage) -> dict[str, tuple[Stage, ...]]:
    """Arms of one training each."""
    return {name: (stage,) for name, stage in arms.items()}
