"""The paper's experiment (HuggingGreen, section V.A) from its plan to its report: `hf-efficient energy`."""

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..energy import find_grid
from ..energy.markdown import kwh
from .energy_analysis import ENERGIES, TRADE_OFF, Goal, analyse, conclude, judge, save, write_markdown
from .energy_plots import plot_energies, plot_trade_off
from .repetitions import ExperimentError, Variant, plan, read_report, run_all, to_record


def compare_energy(
    runs: Sequence[str],
    *,
    repetitions: int = 5,
    first_seed: int = 0,
    output_dir: Path = Path("runs/energy"),
    script: Path | None = None,
    set: Sequence[str] = (),
    countries: Sequence[str] = (),
    goal: Goal = Goal(),  # noqa: B008  it is frozen
    dry_run: bool = False,
) -> None:
    """Runs all repetitions that have not finished yet, and writes the report, its figures and its JSON.

    Args:
        runs: `[name=]config[,key=value ...]` each; the first is what the others are measured against.
        repetitions: of each run, with seeds from `first_seed` on.
        script: what runs a config instead of `hf-efficient train`.
        set: `key=value` of all runs.
        countries: ISO codes, whose carbon intensity to show.
        goal: what is hoped for of the other runs.
        dry_run: print the commands, run nothing.
    """
    try:
        common = [word for pair in set for word in (f"--{pair.partition('=')[0]}", pair.partition("=")[2])]
        variants = [Variant.parse(text) for text in runs]
        grids = [find_grid(country) for country in countries]
        planned = plan(variants, range(first_seed, first_seed + repetitions), output_dir, script, common)
    except ValueError as error:
        raise ExperimentError(str(error)) from error
    if dry_run:
        print(*(shlex.join(repetition.command) for repetition in planned), sep="\n")
        return
    outcomes = []
    for outcome in run_all(planned, announcer(len(planned))):
        outcomes.append(outcome)
        score = "" if outcome.f1_micro is None else f", micro-F1 {100 * outcome.f1_micro:.2f} %"
        print(f"    {kwh(outcome.train)} in {outcome.seconds:.1f} s{score}", flush=True)
    analysis = analyse(outcomes)
    arms = {variant.name: variant.words for variant in variants}
    plot_energies(analysis, arms).save(output_dir / ENERGIES)
    plot_trade_off(analysis, arms).save(output_dir / TRADE_OFF)
    reports = [read_report(repetition) for repetition in planned]
    text = write_markdown(analysis, planned, reports, grids, goal)
    record = {"arms": arms, **asdict(analysis), "outcomes": to_record(outcomes)}
    (output_dir / "report.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(*conclude(analysis), *(judge(analysis, goal) if len(variants) > 1 else ()), sep="\n")
    print(f"report: {save(output_dir, text)}")


def announcer(total: int):
    """Tells what is run next, and how long the rest may take."""
    began, ran = time.monotonic(), 0

    def tell(index, repetition, was_there):
        nonlocal ran
        left = f", about {(time.monotonic() - began) / ran * (total - index) / 60:.0f} min left" if ran else ""
        ran += not was_there
        state = "finished before" if was_there else f"running{left}"
        print(f"[{index + 1}/{total}] {repetition.label}: {state}", flush=True)

    return tell
