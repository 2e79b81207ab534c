"""What the benchmarks' command lines have in common, and how they tell how far they are."""

import argparse
import sys
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.memory import keep_freed_memory
from hf_efficient.experiments.process_memory import limit_memory

FROM_A_CLONE = "Run it in the top folder of a clone of the repository; hf_efficient itself need not be installed."


def positive(text: str) -> int:
    """An argument that must be a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer.")
    return int(text)


def benchmark_parser(name: str, description: str, output: str, examples: str = "") -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        epilog=f"{examples}\n{FROM_A_CLONE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=Path(output), metavar="DIR", help=f"where results go (default: {output})"
    )
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="default: what PyTorch chooses; with 1, processor time is measured, which other programs disturb less",
    )
    parser.add_argument(
        "--default-allocator", action="store_true", help="let glibc return freed memory to the system after every call"
    )
    return parser


def prepare(arguments: argparse.Namespace) -> None:
    """Sets allocator, threads and the limit of memory, and makes the output folder: before the work, not after."""
    if not arguments.default_allocator:
        keep_freed_memory()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    limit_memory()
    arguments.output.mkdir(parents=True, exist_ok=True)


class Progress:
    """A bar on a terminal; in a log file, where a bar would be a mess, a line per step."""

    def __init__(self, total: int):
        self.bar = tqdm(total=total, disable=None, smoothing=0)  # None: on a terminal only

    def say(self, text: str) -> None:
        if self.bar.disable:
            print(text, file=sys.stderr, flush=True)
        else:
            self.bar.set_description(text)

    def advance(self, steps: int = 1) -> None:
        self.bar.update(steps)

    def close(self) -> None:
        self.bar.close()
