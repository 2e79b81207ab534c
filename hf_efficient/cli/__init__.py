"""The command `hf-efficient`: one file per subcommand, each a caller of functions in the package.

The first line of a subcommand's docstring and its first example are what `hf-efficient --help` shows. Modules here
import what is slow, or optional, inside their functions.
"""

import atexit
import difflib
import gc
import sys
from collections.abc import Callable
from importlib import import_module

from ..errors import CommandError

COMMANDS = ("train", "evaluate", "predict", "serve", "export", "push", "pull", "compare", "energy", "bench")
COMMANDS += ("claims", "leaderboard", "app", "space", "zoo", "list", "cache", "new-mechanism")
HELP = """Efficient transformers that behave like any other Hugging Face model.

usage: hf-efficient COMMAND ...   (`python -m hf_efficient` is the same)
"""

# At its end Python looks for garbage among millions of objects of modules: a second, and on a busy machine many.
atexit.register(gc.freeze)


def main(argv: list[str] | None = None) -> int:
    """What `hf-efficient` does with these words; the exit code."""
    # No list(): once imported, the subcommand of that name stands in its place here.
    name, *words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(overview())
        return 0
    if name == "--version":
        from .. import __version__

        print(f"hf-efficient {__version__}")
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1, 0.5)
        hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(COMMANDS)}."
        print(f"hf-efficient: there is no command {name!r}. {hint}", file=sys.stderr)
        return 2
    return run(subcommand(name).main, words)


def run(command: Callable[..., object], *arguments, **options) -> int:
    """Calls what a command or script does, and returns its exit code.

    0 or what it returns as a whole number; 1, with one line, for what went wrong; 2, from argparse, for bad usage; 130
    if it was interrupted.
    """
    try:
        code = command(*arguments, **options)
        return code if isinstance(code, int) else 0
    except CommandError as error:
        print(f"Error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted. The same command goes on where it can.", file=sys.stderr)
        return 130


def subcommand(name: str):
    return import_module(f".{name.replace('-', '_')}", __name__)


def overview() -> str:
    """A line and an example for every subcommand."""
    width = max(map(len, COMMANDS)) + 2
    lines = [HELP]
    for name in COMMANDS:
        summary, *rest = subcommand(name).__doc__.splitlines()
        example = next(line.strip() for line in rest if line.startswith("    "))
        lines += [f"  {name:<{width}}{summary.rstrip('.')}", f"  {'':<{width}}  {example}", ""]
    lines.append("`hf-efficient COMMAND --help` says more.")
    return "\n".join(lines)
