"""What the papers claim, decided: each claim by one command.

    hf-efficient claims list
    hf-efficient claims run kerformer_vit
    hf-efficient claims run linear_cost --quick
    hf-efficient claims report

`list` says what each takes: minutes of one core, times arms, times seeds. `run` measures what is missing and writes
docs/results/claims/NAME.json; stopped, or started anew, it goes on. Begin it on a quiet machine: it rehearses all
arms first, which fixes their steps. `report` writes docs/claims.md: the paper's figures and ours, and a verdict
(holds, does not hold, undecided) with its interval.
"""

from pathlib import Path

from ..extras import require
from ..tables import columns
from .parser import SEED, Parser


def main(argv: list[str]) -> None:
    parser = Parser("claims", __doc__)
    parser.add_argument("action", nargs="?", choices=("list", "run", "report"), default="list", help="(default: list)")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the claims to run: `list` shows them")
    parser.add_argument("--budget", help="of each training, instead of the claim's: 30s, 8min, ...")
    parser.add_argument("--seeds", type=int, help="of each training, and rounds of what is timed")
    parser.add_argument("--first-seed", type=SEED, default=0, help="seeds are this one and those after it")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, each with one thread (default 1)")
    parser.add_argument(
        "--output-dir", type=Path, default=Path("runs/claims"), help="of the runs; default runs/claims"
    )
    parser.add_argument("--record", type=Path, help="the JSON to go on with; default docs/results/claims/NAME.json")
    parser.add_argument("--quick", action="store_true", help="on tiny embedded data, in seconds; decides nothing")
    arguments = parser.parse_args(argv)
    for name in ("seeds", "jobs"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            parser.error(f"--{name} {getattr(arguments, name)} must be at least 1.")
    if arguments.action == "run" and not arguments.names:
        parser.error("name the claim to run: `hf-efficient claims list` shows them.")
    if arguments.record and len(arguments.names) > 1:
        parser.error("--record is of one claim.")
    require("train")
    from ..errors import told
    from ..experiments.claims import claim, claims
    from ..experiments.claims.base import Options
    from ..experiments.claims.report import costs, described, write_page
    from ..experiments.claims.run import run_claim

    with told("claims"):
        fields = {"quick": arguments.quick, "budget": arguments.budget, "seeds": arguments.seeds}
        fields |= {"first_seed": arguments.first_seed, "folder": arguments.output_dir, "jobs": arguments.jobs}
        options = Options(**fields)
        if arguments.action == "list":
            chosen = [claim(name) for name in arguments.names] or claims()
            print(columns([("claim", "source", "minutes x arms x seeds", "minutes"), *costs(chosen, options)]))
        elif arguments.action == "report":
            print(f"written: {write_page()}")
        else:
            for one in [claim(name) for name in arguments.names]:
                print(described(one, run_claim(one.name, options, arguments.record)))
