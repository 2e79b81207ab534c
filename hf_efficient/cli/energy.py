"""Compare the energy of runs: does one really take less than another?

    hf-efficient energy cifar10_vit_small cifar10_hugginggreen_vit_small -n 6
    hf-efficient energy full=my_run.yaml,heuristic=none half=my_run.yaml,top_k=32 --set country=DEU

Each run is repeated n times with other seeds, all of them interleaved (A B A B ...), every repetition in a process of
its own. Then: Shapiro-Wilk at 0.05 on the energies, means with confidence intervals if they look normal and medians if
not, micro-F1, energy over micro-F1, grams of CO2e by country, and whether each difference is more than noise. The
first run is what the others are measured against. The report can say "no saving", and "too few repetitions to tell".

Stopped, or started anew with the same arguments, it goes on: repetitions that finished are not run again.
"""

from pathlib import Path

from ..extras import require
from .parser import SEED, Parser

COUNTRIES = ["DEU", "FRA", "GBR", "ITA", "NOR", "POL", "USA", "CHN", "IND"]


def main(argv: list[str]) -> None:
    parser = Parser("energy", __doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="[name=]config[,key=value ...]",
        help="what to compare; keys override the config's as `hf-efficient train` does; the first is the baseline",
    )
    parser.add_argument(
        "-n", "--repetitions", type=int, default=5, help="of each run (default 5; below 3 tells nothing)"
    )
    parser.add_argument("--first-seed", type=SEED, default=0, help="seeds are this one and those after it")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/energy"), help="default runs/energy")
    parser.add_argument("--script", type=Path, help="what runs a config instead of `hf-efficient train`")
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", help="keys to override in all runs")
    parser.add_argument(
        "--countries", nargs="*", default=COUNTRIES, metavar="ISO", help="whose carbon intensity to show"
    )
    parser.add_argument("--most-energy", type=float, help="the goal: share of the baseline's energy (default: 0.75)")
    parser.add_argument("--most-points", type=float, help="the goal: points of micro-F1 given up (default: 0.5)")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    arguments = vars(parser.parse_args(argv))
    if arguments["repetitions"] < 1:
        parser.error(f"--repetitions {arguments['repetitions']} must be at least 1.")
    require("train", "energy")
    from ..errors import told
    from ..experiments.energy_analysis import Goal
    from ..experiments.energy_comparison import compare_energy

    stated = {"energy": arguments.pop("most_energy"), "points": arguments.pop("most_points")}
    goal = Goal(**{name: value for name, value in stated.items() if value is not None})
    with told("energy"):
        compare_energy(**arguments, goal=goal)
