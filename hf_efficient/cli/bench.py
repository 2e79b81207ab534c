"""Measure speed and memory, from a clone: what stands in its folder benchmarks/.

    hf-efficient bench attention --help

`hf-efficient bench` alone lists the benchmarks. They compare with libraries of the extra `dev`, so they are no part of
an installed package.
"""

import difflib
import sys
from importlib import import_module
from pathlib import Path

from ..errors import CommandError

CLONE = Path(__file__).parents[2]


def main(argv: list[str]) -> int:
    if argv[:1] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return 0
    if not (CLONE / "benchmarks" / "__init__.py").is_file():
        raise CommandError('benchmarks need a clone of the repository and: pip install -e ".[train,dev]"')
    sys.path.insert(0, str(CLONE))
    benchmarks = import_module("benchmarks").BENCHMARKS
    if not argv:
        print("\n".join(f"hf-efficient bench {name:<12}  {benchmark.help}" for name, benchmark in benchmarks.items()))
        return 0
    name, *words = argv
    if name not in benchmarks:
        close = difflib.get_close_matches(name, benchmarks, 1, 0.5)
        hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(benchmarks)}."
        print(f"hf-efficient bench: there is no benchmark {name!r}. {hint}", file=sys.stderr)
        return 2
    return benchmarks[name].main(words)
