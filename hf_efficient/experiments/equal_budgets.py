"""Runs that are given the same time: which is better for it? `hf-efficient compare`.

All runs are rehearsed side by side, in turns, on a machine that should be quiet: what a step takes (and what power the
machine draws meanwhile) gives each run its number of steps. After that the machine's load does not matter, so that
repetitions may run in any order, two at a time, today and tomorrow, here and elsewhere. Seconds and joules are those
of the rehearsal. `budget_record.py` holds what is known so far.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Lock

import torch

from ..energy import EnergyMeter
from ..tables import columns
from ..training.arguments import LOWER_IS_BETTER
from ..training.budget import Budget, Rehearsal
from ..training.tasks import prepare
from .budget_plot import plot_curves
from .budget_record import Arm, Pace, Record, score
from .repetitions import Repetition, Variant, finish, is_finished, plan
from .statistics import Comparison, Summary

RECORD = "comparison.json"
ROUNDS = 5


def compare_at_equal_budget(
    runs: Sequence[str],
    budget: str,
    *,
    seeds: int = 3,
    first_seed: int = 0,
    output_dir: Path = Path("runs/compare"),
    record: Path | None = None,
    set: Sequence[str] = (),
    jobs: int = 1,
    dry_run: bool = False,
) -> dict:
    """Rehearses, runs what has no score yet, and writes the record and a table.

    Args:
        runs: `[name=]config[,key=value ...]` each; the first is what the others are measured against.
        budget: of each run, as "8min" or "20kJ".
        seeds: how many, from `first_seed` on.
        record: the file to go on with; comparison.json in `output_dir` if not given.
        set: `key=value` of all runs.
        jobs: repetitions at a time, which share the machine's cores evenly.
        dry_run: rehearse, print the commands, run nothing.
    """
    Budget.parse(budget)
    common = [word for pair in set for word in (f"--{pair.partition('=')[0]}", pair.partition("=")[2])]
    variants = [Variant.parse(text) for text in runs]
    file = record or output_dir / RECORD
    known = Record.load(file, budget)
    known.add_command(shlex.join(["hf-efficient", *sys.argv[1:]]))
    calibrate(known, variants, common, output_dir / "rehearsal")
    known.save(file)
    fixed = [replace(v, overrides=(*v.overrides, "--max_steps", str(known.arms[v.name].steps))) for v in variants]
    planned = plan(fixed, range(first_seed, first_seed + seeds), output_dir, common=common)
    left = [one for one in planned if one.seed not in known.arms[one.variant.name].scores]
    if dry_run:
        print(*(shlex.join(repetition.command) for repetition in left), sep="\n")
        return {}
    run_all(left, jobs, known, file)
    found, picture = known.to_json(), file.with_suffix(".png")
    if (drawn := plot_curves(found)) is not None:
        drawn.save(picture)
    print(f"\n{table(found)}\n\nWritten to {file} and {picture.name}", flush=True)
    return found


def calibrate(known: Record, variants: Sequence[Variant], common: Sequence[str], folder: Path) -> None:
    """Rehearses those that the record does not have yet, and adds them to it."""
    arms = {variant.name: Arm.of(variant, common) for variant in variants}
    new = [variant for variant in variants if not known.has(variant.name, arms[variant.name])]
    if not new:
        return
    words = {variant.name: (str(variant.config), [*common, *variant.overrides]) for variant in new}
    yardstick = next(iter(known.arms), None)
    if yardstick is None:
        paces = rehearse(words, folder)
    else:
        name, *overrides = known.arms[yardstick].settings
        paces = rehearse_beside(known.arms[yardstick].pace, (name, overrides), words, folder)
    for variant in new:
        known.add(variant.name, arms[variant.name], paces[variant.name])


def rehearse_beside(
    known: Pace, yardstick: tuple[str, list[str]], runs: dict[str, tuple[str, list[str]]], folder: Path, **options
) -> dict[str, Pace]:
    """The paces of new runs, in seconds of the machine on which the yardstick's was `known`."""
    paces = rehearse({**runs, "": yardstick}, folder, **options)
    factor = known.seconds_per_step / paces.pop("").seconds_per_step
    return {name: replace(pace, seconds_per_step=factor * pace.seconds_per_step) for name, pace in paces.items()}


def rehearse(
    runs: dict[str, tuple[str, list[str]]], folder: Path, rounds: int | None = None, seconds: float | None = None
) -> dict[str, Pace]:
    """The pace of each: some steps of all of them, in turns.

    Args:
        runs: name -> config and what is set besides.
        rounds, seconds: how many turns, and how long each is, where less will do.
    """
    print(f"Rehearsing {', '.join(filter(None, runs))}: nothing else should run now.", flush=True)
    rehearsals = {}
    for name, (config, words) in runs.items():
        trainer, run = prepare(config, ["--output_dir", str(folder), *words])
        rehearsals[name] = Rehearsal(trainer).__enter__()
    with EnergyMeter({**run.energy, "interval": 1.0}) as meter:
        for _ in range(rounds or ROUNDS):
            for number, rehearsal in enumerate(rehearsals.values(), 1):
                with meter.phase("train", epoch=number):
                    rehearsal.play(seconds=seconds)
    paces = {}
    for number, (name, rehearsal) in enumerate(rehearsals.items(), 1):
        joules, taken = (of("train", epoch=number) for of in (meter.report().joules, meter.report().seconds))
        method = "; ".join(map(str, meter.report().components))
        watts = joules / taken if joules else None
        paces[name] = Pace(rehearsal.seconds_per_step(), watts, method, torch.get_num_threads())
        rehearsal.__exit__()
    return paces


def run_all(left: Sequence[Repetition], jobs: int, known: Record, file: Path) -> None:
    """Runs what has no score; a repetition that was interrupted goes on from its last checkpoint."""
    threads, lock = max(1, usable_cores() // jobs), Lock()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}

    def run(repetition: Repetition) -> None:
        if not is_finished(repetition):
            print(f"{repetition.label}: running", flush=True)
            finish(repetition, environment)
        metric, metrics = score(repetition)
        print(f"{repetition.label}: {metric} {metrics[metric]:.4f}", flush=True)
        with lock:
            known.add_score(repetition, metric, metrics)
            known.save(file)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, left))


def usable_cores() -> int:
    """Those that `taskset` or a cluster's scheduler left to this process"""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def table(record: dict) -> str:
    """A line for each run: score with its interval, steps, seconds, joules, and the difference from the first."""
    first, lower = next(iter(record["arms"])), record["metric"].endswith(LOWER_IS_BETTER)
    rows = [("run", record["metric"] + (" (lower is better)" if lower else ""), "steps", "s", "J", f"over {first}")]
    for name, arm in record["arms"].items():
        pair = next((Comparison(**x) for x in record["differences"] if (x["a"], x["b"]) == (first, name)), None)
        joules = "?" if arm["joules"] is None else f"{arm['joules']:,.0f}"
        value = with_interval(Summary(**arm["summary"])) if arm["scores"] else "not run"
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
