"""Every mechanism in the same model, in equal time: what it reaches, what it takes.

    hf-efficient leaderboard --budget 8min
    hf-efficient leaderboard --tasks cifar10 --mechanisms softmax kerformer
    hf-efficient leaderboard --report

All mechanisms that fit are trained in a small ViT on CIFAR-10, all causal ones in a small language model on enwik8, 8
minutes each. First they are rehearsed in turns, which should happen on a quiet machine and fixes their numbers of
steps. Each is one JSON in docs/results/leaderboard. Stopped, or started anew, it goes on.

--report writes docs/leaderboard.md and the page docs/leaderboard/index.html from these files, and trains nothing.
"""

from pathlib import Path

from ..extras import require
from .parser import Parser


def main(argv: list[str]) -> None:
    parser = Parser("leaderboard", __doc__)
    parser.add_argument("--tasks", nargs="+", default=[], metavar="TASK", help="cifar10, enwik8 (default: both)")
    parser.add_argument("--mechanisms", nargs="+", default=[], metavar="NAME", help="default: all that fit")
    parser.add_argument("--budget", default="8min", help="of each training (default 8min)")
    parser.add_argument("--seeds", type=int, default=1, help="of each mechanism (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, which share the cores (default 1)")
    parser.add_argument("--rows", type=Path, help="folder of the JSON files (default docs/results/leaderboard)")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/leaderboard"), help="default runs/leaderboard")
    parser.add_argument("--quick", action="store_true", help="tiny models on embedded data; nothing is kept")
    parser.add_argument("--report", action="store_true", help="write table and page from what there is")
    arguments = vars(parser.parse_args(argv))
    for name in ("seeds", "jobs"):
        if arguments[name] < 1:
            parser.error(f"--{name} {arguments[name]} must be at least 1.")
    report, folder = arguments.pop("report"), arguments.pop("rows")
    from ..errors import told
    from ..experiments.leaderboard.page import print_table, write_pages
    from ..experiments.leaderboard.rows import FOLDER, fill, load_rows

    folder = folder or FOLDER
    with told("leaderboard"):
        if report:
            print(*(f"written: {file}" for file in write_pages(Path("docs"), folder)), sep="\n")
            return
        require("train")
        rows = fill(**arguments, rows=folder)
        print_table(rows if arguments["quick"] else load_rows(folder))
