"""Runs that are given the same time: which is better for it? `hf-efficient compare`.

All runs are rehearsed side by side, in turns, on a machine that should be quiet: what a step takes (and what power the
machine draws meanwhile) gives each run its number of steps. After that the machine's load does not matter, so that
repetitions may run in any order, two at a time, today and tomorrow. Seconds and joules are those of the rehearsal.
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ..energy import EnergyMeter
from ..tables import columns
from ..training.arguments import LOWER_IS_BETTER
from ..training.budget import Budget, Rehearsal
from ..training.checkpoints import replace_file
from ..training.tasks import prepare
from .repetitions import RESULTS, ExperimentError, Repetition, Variant, finish, is_finished, plan
from .statistics import Comparison, Summary, compare_all, summarize

CALIBRATION, REPORT = "calibration.json", "comparison.json"
ROUNDS = 5


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


def compare_at_equal_budget(
    runs: Sequence[str],
    budget: str,
    *,
    seeds: int = 3,
    first_seed: int = 0,
    output_dir: Path = Path("runs/compare"),
    set: Sequence[str] = (),
    jobs: int = 1,
    dry_run: bool = False,
) -> dict:
    """Rehearses, runs what has not finished yet, and writes comparison.json and a table.

    Args:
        runs: `[name=]config[,key=value ...]` each; the first is what the others are measured against.
        budget: of each run, as "8min" or "20kJ".
        seeds: how many, from `first_seed` on.
        set: `key=value` of all runs.
        jobs: repetitions at a time, which share the machine's cores evenly.
        dry_run: rehearse, print the commands, run nothing.
    """
    amount = Budget.parse(budget)
    common = [word for pair in set for word in (f"--{pair.partition('=')[0]}", pair.partition("=")[2])]
    variants = [Variant.parse(text) for text in runs]
    paces = calibrate(variants, common, output_dir / CALIBRATION)
    steps = {variant.name: paces[variant.name].steps(amount) for variant in variants}
    fixed = [replace(v, overrides=(*v.overrides, "--max_steps", str(steps[v.name]))) for v in variants]
    planned = plan(fixed, range(first_seed, first_seed + seeds), output_dir, common=common)
    if dry_run:
        print(*(shlex.join(repetition.command) for repetition in planned), sep="\n")
        return {}
    run_all(planned, jobs)
    record = summarise(planned, paces, budget)
    replace_file(output_dir / REPORT, json.dumps(record, indent=2) + "\n")
    print(f"\n{table(record)}\n\nWritten to {output_dir / REPORT}", flush=True)
    return record


def calibrate(variants: Sequence[Variant], common: Sequence[str], file: Path) -> dict[str, Pace]:
    """The pace of each variant: from the file, if it has been measured before with the same settings, or now."""
    asked = {variant.name: [variant.config.name, *common, *variant.overrides] for variant in variants}
    if file.is_file():
        known = json.loads(file.read_text(encoding="utf-8"))
        if all(known.get(name, {}).get("settings") == words for name, words in asked.items()):
            return {name: Pace(**known[name]["pace"]) for name in asked}
    print(f"Rehearsing {', '.join(asked)}: nothing else should run now.", flush=True)
    rehearsals = {}
    for variant in variants:
        words = ["--output_dir", str(file.parent / "rehearsal"), *common, *variant.overrides]
        trainer, run = prepare(str(variant.config), words)
        rehearsals[variant.name] = Rehearsal(trainer).__enter__()
    with EnergyMeter({**run.energy, "interval": 1.0}) as meter:
        for _ in range(ROUNDS):
            for number, rehearsal in enumerate(rehearsals.values(), 1):
                with meter.phase("train", epoch=number):
                    rehearsal.play()
    paces = {}
    for number, (name, rehearsal) in enumerate(rehearsals.items(), 1):
        joules, seconds = (of("train", epoch=number) for of in (meter.report().joules, meter.report().seconds))
        method = "; ".join(map(str, meter.report().components))
        watts = joules / seconds if joules else None
        paces[name] = Pace(rehearsal.seconds_per_step(), watts, method, torch.get_num_threads())
        rehearsal.__exit__()
    record = {name: {"settings": asked[name], "pace": asdict(pace)} for name, pace in paces.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(record, indent=2) + "\n")
    return paces


def run_all(repetitions: Sequence[Repetition], jobs: int) -> None:
    """Runs what has not finished; a repetition that was interrupted goes on from its last checkpoint."""
    left = [repetition for repetition in repetitions if not is_finished(repetition)]
    threads = max(1, (os.cpu_count() or 1) // jobs)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}

    def run(repetition: Repetition) -> None:
        print(f"{repetition.label}: running", flush=True)
        finish(repetition, environment)
        metric, value = score(repetition)
        print(f"{repetition.label}: {metric} {value:.4f}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, left))


def score(repetition: Repetition) -> tuple[str, float]:
    """The metric that a run was judged by, of the split by which nothing was chosen."""
    try:
        results = json.loads((repetition.folder / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{repetition.label} left no readable {RESULTS}: {error}") from error
    wanted = (results["metric_for_best_model"] or "loss").removeprefix("eval_")
    for name in (f"test_{wanted}", f"eval_{wanted}"):
        if results["metrics"].get(name) is not None:
            return name, results["metrics"][name]
    raise ExperimentError(f"{repetition.label} has no {wanted} in its {RESULTS}.")


def summarise(repetitions: Sequence[Repetition], paces: dict[str, Pace], budget: str) -> dict:
    """What comparison.json holds."""
    samples: dict[str, dict[int, float]] = {}
    metrics, steps = [], {}
    for repetition in repetitions:
        metric, value = score(repetition)
        metrics.append(metric)
        samples.setdefault(repetition.variant.name, {})[repetition.seed] = value
        steps[repetition.variant.name] = int(repetition.variant.overrides[-1])
    if len(set(metrics)) > 1:
        raise ExperimentError(f"runs are judged by {', '.join(sorted(set(metrics)))}: they can't be compared.")
    arms = {}
    for name, sample in samples.items():
        pace, summary = paces[name], summarize(list(sample.values()))
        seconds = steps[name] * pace.seconds_per_step
        joules = None if pace.watts is None else seconds * pace.watts
        arms[name] = {"steps": steps[name], "seconds": seconds, "joules": joules, "method": pace.method}
        arms[name] |= {"threads": pace.threads, "scores": sample, "summary": asdict(summary)}
    differences = [asdict(pair) for pair in compare_all(samples, ratio=False)]
    command = shlex.join(["hf-efficient", *sys.argv[1:]])
    return {"budget": budget, "metric": metrics[0], "command": command, "arms": arms, "differences": differences}


def table(record: dict) -> str:
    """A line for each run: score with its interval, steps, seconds, joules, and the difference from the first."""
    first, lower = next(iter(record["arms"])), record["metric"].endswith(LOWER_IS_BETTER)
    rows = [("run", record["metric"] + (" (lower is better)" if lower else ""), "steps", "s", "J", f"over {first}")]
    for name, arm in record["arms"].items():
        pair = next((Comparison(**x) for x in record["differences"] if (x["a"], x["b"]) == (first, name)), None)
        joules = "?" if arm["joules"] is None else f"{arm['joules']:,.0f}"
        value = with_interval(Summary(**arm["summary"]))
        rows.append((name, value, f"{arm['steps']:,}", f"{arm['seconds']:.0f}", joules, described(pair)))
    return columns(rows)


def with_interval(summary: Summary) -> str:
    interval = "" if summary.low is None else f" [{summary.low:.4f}, {summary.high:.4f}]"
    return f"{summary.centre:.4f}{interval}"


def described(pair: Comparison | None) -> str:
    if pair is None:
        return ""
    if pair.p is None:
        return f"{pair.effect:+.4f}, {pair.reason}"
    p = pair.p if pair.adjusted is None else pair.adjusted
    return f"{pair.effect:+.4f} [{pair.low:+.4f}, {pair.high:+.4f}], p = {p:.2g}"
