"""The paper's experiment as a command: does one run really take less energy than another?

    python scripts/measure_energy.py configs/a.yaml configs/b.yaml --set country=DEU
    python scripts/measure_energy.py full=configs/a.yaml,heuristic=none half=configs/a.yaml,top_k=32 -n 6

Each run is repeated n times with other seeds, all of them interleaved (A B A B ...), every repetition in a process of
its own. Then: Shapiro-Wilk at 0.05 on the energies, means with confidence intervals if they look normal and medians if
not, micro-F1, energy over micro-F1, grams of CO2e by country, and whether each difference is more than noise. The
first run is what the others are measured against. The report can say "no saving", and "too few repetitions to tell".

Stopped, or started anew with the same arguments, it goes on: repetitions that finished are not run again.
"""

import argparse
import json
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path

from hf_efficient.energy import find_grid
from hf_efficient.energy.experiment import ExperimentError, Variant, plan, read_report, run_all, to_record
from hf_efficient.energy.experiment_report import (
    ENERGIES,
    TRADE_OFF,
    Goal,
    analyse,
    conclude,
    judge,
    save,
    write_markdown,
)
from hf_efficient.energy.markdown import kwh
from hf_efficient.energy.plots import plot_energies, plot_trade_off

COUNTRIES = ["DEU", "FRA", "GBR", "ITA", "NOR", "POL", "USA", "CHN", "IND"]


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="[name=]config.yaml[,key=value ...]",
        help="what to compare; keys override the config's as on the script's command line; the first is the baseline",
    )
    parser.add_argument(
        "-n", "--repetitions", type=int, default=5, help="of each run (default 5; below 3 tells nothing)"
    )
    parser.add_argument("--first_seed", type=int, default=0, help="seeds are this one and those after it")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/energy"), help="default runs/energy")
    parser.add_argument(
        "--script", type=Path, default=Path(__file__).with_name("train_image_classifier.py"), help="what runs a config"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", help="keys to override in all runs")
    parser.add_argument(
        "--countries", nargs="*", default=COUNTRIES, metavar="ISO", help="whose carbon intensity to show"
    )
    parser.add_argument(
        "--most_energy", type=float, default=Goal.energy, help="the goal: share of the baseline's energy"
    )
    parser.add_argument("--most_points", type=float, default=Goal.points, help="the goal: points of micro-F1 given up")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    arguments = parser.parse_args(argv)
    if arguments.repetitions < 1:
        parser.error(f"--repetitions {arguments.repetitions} must be at least 1.")
    return arguments


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


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    try:
        common = [word for pair in arguments.set for word in (f"--{pair.partition('=')[0]}", pair.partition("=")[2])]
        seeds = range(arguments.first_seed, arguments.first_seed + arguments.repetitions)
        variants = [Variant.parse(text) for text in arguments.runs]
        grids = [find_grid(country) for country in arguments.countries]
        repetitions = plan(variants, seeds, arguments.output_dir, arguments.script, common)
        if arguments.dry_run:
            print(*(shlex.join(repetition.command) for repetition in repetitions), sep="\n")
            return 0
        outcomes = []
        for outcome in run_all(repetitions, announcer(len(repetitions))):
            outcomes.append(outcome)
            score = "" if outcome.f1_micro is None else f", micro-F1 {100 * outcome.f1_micro:.2f} %"
            print(f"    {kwh(outcome.train)} in {outcome.seconds:.1f} s{score}", flush=True)
    except (ExperimentError, ValueError) as error:
        print(f"measure_energy: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here.", file=sys.stderr)
        return 130
    goal = Goal(arguments.most_energy, arguments.most_points)
    analysis = analyse(outcomes)
    plot_energies(analysis, arguments.output_dir / ENERGIES)
    plot_trade_off(analysis, arguments.output_dir / TRADE_OFF)
    reports = [read_report(repetition) for repetition in repetitions]
    text = write_markdown(analysis, repetitions, reports, grids, goal)
    record = {**asdict(analysis), "outcomes": to_record(outcomes)}
    (arguments.output_dir / "report.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(*conclude(analysis), *(judge(analysis, goal) if len(variants) > 1 else ()), sep="\n")
    print(f"report: {save(arguments.output_dir, text)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
