"""Compare runs that are given the same time or energy: which is better for it?

    hf-efficient compare cifar10_vit_small cifar10_hugginggreen_vit_small --budget 8min --seeds 3
    hf-efficient compare full=my_run.yaml,heuristic=none half=my_run.yaml,top_k=32 --budget 20kJ --jobs 2

First all runs are rehearsed in turns, which should happen on a quiet machine: what a step takes fixes each run's
number of steps. Then every run is trained with each seed; load does not matter any more, and --jobs 2 trains two at a
time. The report has the metric of the test split with its interval, steps, seconds and joules at the speed rehearsed,
and whether each run differs from the first by more than noise.

Stopped, or started anew with the same arguments, it goes on: what finished is not run again. --record goes on with the
file of an earlier comparison, on any machine: the numbers of steps stay those of the file, seeds and runs that it does
not have are added to it.
`hf-efficient energy` measures the energy of whole runs instead.
"""

from pathlib import Path

from ..extras import require
from .parser import SEED, Parser


def main(argv: list[str]) -> None:
    parser = Parser("compare", __doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="[name=]config[,key=value ...]",
        help="what to compare; keys override the config's as `hf-efficient train` does; the first is the baseline",
    )
    parser.add_argument("--budget", required=True, help="of each run: 8min, 1h, 20kJ, ...")
    parser.add_argument("--seeds", type=int, default=3, help="of each run (default 3; fewer tell nothing)")
    parser.add_argument("--first-seed", type=SEED, default=0, help="seeds are this one and those after it")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/compare"), help="default runs/compare")
    parser.add_argument("--record", type=Path, help="go on with this file; default comparison.json in --output-dir")
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", help="keys to override in all runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, which share the cores (default 1)")
    parser.add_argument("--dry-run", action="store_true", help="rehearse and print the commands, train nothing")
    arguments = vars(parser.parse_args(argv))
    for name in ("seeds", "jobs"):
        if arguments[name] < 1:
            parser.error(f"--{name} {arguments[name]} must be at least 1.")
    require("train")
    from ..errors import told
    from ..experiments.equal_budgets import compare_at_equal_budget

    with told("compare"):
        compare_at_equal_budget(**arguments)
