"""Benchmark every attention mechanism against PyTorch's fused softmax attention (SDPA): make bench ARGS="--help"."""

import argparse
import sys

from benchmarks.attention_floors import all_figures, number_of_steps
from benchmarks.command_line import Progress, benchmark_parser, positive, prepare
from benchmarks.memory import peak_memory
from benchmarks.peers import field
from benchmarks.record import run_record
from benchmarks.reports import DIRECTIONS, write_attention
from benchmarks.timing import PATIENCE, race
from hf_efficient.attention import list_attentions

DESCRIPTION = f"""
Time and peak memory of every registered attention mechanism against sequence length,
with PyTorch's fused softmax attention (F.scaled_dot_product_attention) beside it in the
same run, and the peers that are installed (performer-pytorch, linformer,
nystrom-attention).

What is compared: batch 1, 8 heads of 64, float32. Mechanisms of q, k and v run bare,
against SDPA. Those that work on hidden states (axial, fnet, mixer, separable), and peers
that come only as whole modules, run with their projections against softmax attention
with its own; † marks them.

How: everything is warmed up, then each contender has its turn in every round, and every
round gives a ratio, SDPA's time over the contender's: 2 is twice as fast as SDPA. Shown
are the median over the rounds and, in brackets, the quartiles. Milliseconds are only a
hint: they depend on what else the machine does. "forward" is without gradients,
"forward+backward" yields the gradients of inputs and parameters. Peak memory is taken in
a process of its own, above what that needs when idle. glibc is told to keep freed memory,
for all contenders alike: returning it after every call costs page faults that can exceed
what is to be measured (--default-allocator leaves them in). A contender that would take
more than {PATIENCE:.0f} s a call, or more memory than there is, is left out, and the output says so.
"""

EXAMPLES = """
examples:
  python -m benchmarks.attention              everything, about half an hour on two cores
  python -m benchmarks.attention --targets    only the figures that have a target; fails if one is missed
  python -m benchmarks.attention --quick      a first impression in a few minutes
  python -m benchmarks.attention --mechanisms performer linear_elu --lengths 1024 16384 --causal
  make bench ARGS=--quick                     the same, in an environment that make sets up

A run writes benchmark.json (every round, and the machine it ran on), benchmark.png
(speed-up against length) and benchmark.md (the table of mechanisms with their crossover:
the length from which on they are faster than SDPA). --targets alone writes targets.json
and targets.md. A run without --mechanisms and --quick ends with the targets.
"""


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = benchmark_parser("attention", DESCRIPTION, "results/attention", EXAMPLES)
    parser.add_argument("--lengths", type=positive, nargs="+", metavar="N", help="default: 128 to 4096 in doublings")
    parser.add_argument(
        "--mechanisms", nargs="+", choices=list_attentions(), metavar="NAME", help=f"of {', '.join(list_attentions())}"
    )
    direction = parser.add_mutually_exclusive_group()
    direction.add_argument("--causal", action="store_true", help="only causal attention (default: both)")
    direction.add_argument("--bidirectional", action="store_true", help="only bidirectional attention")
    parser.add_argument("--rounds", type=positive, help="default: 7; calls of several seconds get 3")
    parser.add_argument("--memory-lengths", type=positive, nargs="*", metavar="N", help="default: 4096; none: skip it")
    parser.add_argument("--quick", action="store_true", help="3 rounds, up to length 1024, no memory, no targets")
    parser.add_argument("--targets", action="store_true", help="only the figures that have a target")
    arguments = parser.parse_args(argv)
    if arguments.quick and arguments.targets:
        parser.error("--quick measures no targets: give one of --quick and --targets.")
    arguments.lengths = sorted(
        set(arguments.lengths or ([128, 256, 512, 1024] + [2048, 4096] * (not arguments.quick)))
    )
    arguments.rounds = arguments.rounds or (3 if arguments.quick else 7)
    if arguments.memory_lengths is None:
        arguments.memory_lengths = [] if arguments.quick else [4096]
    return arguments


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    arguments = parse_arguments(argv)
    prepare(arguments)
    directions = ["causal"] if arguments.causal else ["bidirectional"] if arguments.bidirectional else DIRECTIONS
    fields = {direction: field(arguments.mechanisms, direction == "causal") for direction in directions}
    run = run_record("attention", argv)
    results = {"environment": run, "rows": [], "left_out": [], "memory": [], "targets": []}
    targets = arguments.targets or not (arguments.quick or arguments.mechanisms)
    progress = Progress(number_of_calls(fields, arguments) * (not arguments.targets) + number_of_steps() * targets)
    if not arguments.targets:
        sweep(fields, arguments, results, progress)
        measure_memory(fields, arguments.memory_lengths, results, progress)
    figures = all_figures(arguments.rounds, progress) if targets else []
    results["targets"] = [figure.record() for figure in figures]
    progress.close()
    write_attention(results, figures, arguments.output)
    missed = [figure for figure in figures if figure.verdict == "FAIL"]
    return 1 if arguments.targets and missed else 0


def number_of_calls(fields: dict, arguments: argparse.Namespace) -> int:
    contenders = sum(len(contenders) for contenders, _ in fields.values())
    return contenders * (len(arguments.lengths) * 2 * arguments.rounds + len(arguments.memory_lengths))


def sweep(fields: dict, arguments: argparse.Namespace, results: dict, progress: Progress) -> None:
    """Every contender at every length, in both passes."""
    for direction, (contenders, absent) in fields.items():
        results["left_out"] += [{"contender": name, "reason": reason} for name, reason in absent.items()]
        for length in arguments.lengths:
            progress.say(f"{direction}, N={length}")
            rows, left_out = race(
                contenders, length, direction == "causal", arguments.rounds, after_call=progress.advance
            )
            results["rows"] += rows
            results["left_out"] += left_out
            called = sum(len(row["seconds"]) for row in rows)
            progress.advance(len(contenders) * 2 * arguments.rounds - called)  # those left out


def measure_memory(fields: dict, lengths: list[int], results: dict, progress: Progress) -> None:
    left_out = {(row["contender"], row.get("direction"), row.get("length")) for row in results["left_out"]}
    for direction, (contenders, _) in fields.items():
        for length in lengths:
            progress.say(f"peak memory, {direction}, N={length}")
            for contender in contenders:
                row = {"contender": contender.name, "direction": direction, "length": length}
                if tuple(row.values()) not in left_out:
                    peak = peak_memory(contender, length, direction == "causal")
                    results["memory"].append({**row, "reason" if isinstance(peak, str) else "bytes": peak})
                progress.advance()


if __name__ == "__main__":
    raise SystemExit(main())
