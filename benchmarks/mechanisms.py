"""The mechanism table: every mechanism built, run, held to its own formula, and timed: make demo-attention."""

import argparse
import sys
from pathlib import Path

import torch

from benchmarks.command_line import Progress, benchmark_parser, positive, prepare
from benchmarks.ours import MODULE, build, grid_for, mechanism, module, sdpa
from benchmarks.plots import draw_mechanisms
from benchmarks.record import describe_run, run_record
from benchmarks.reports import write_files
from benchmarks.tables import markdown_table, significant, text_table
from benchmarks.timing import race
from benchmarks.workloads import TRAINING
from hf_efficient.attention import get_attention, list_attentions

DESCRIPTION = """
Every attention mechanism built, run, held to its own formula, and timed. For each:

  error   the largest difference between its fast form and its literal O(N²) form in
          float64, bidirectional and causal
  N=...   its time, forward and backward, against PyTorch's fused softmax attention (SDPA)
  can     what it can do
"""
ROUNDS = 3
EXACT = {"length": 96, "hidden_size": 32, "num_heads": 4}  # the literal forms are slow
HEADER = ["mechanism", "paper", "cost", "error", "causal error"]
ABILITIES = {"causal": "causal", "recurrent": "recurrent", "key_mask": "mask", "cross": "cross"}


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    names = list_attentions()
    parser = benchmark_parser("mechanisms", DESCRIPTION, "results/demo_attention")
    parser.add_argument("--lengths", type=positive, nargs="+", default=[256, 1024, 4096], metavar="N")
    parser.add_argument(
        "--mechanisms", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {', '.join(names)}"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    arguments = parse_arguments(argv)
    prepare(arguments)
    names, lengths = arguments.mechanisms, sorted(set(arguments.lengths))
    contenders = [mechanism(name) for name in names]
    contenders += [sdpa()] + [module("softmax")] * any(c.against == MODULE for c in contenders)
    progress = Progress(len(names) + len(lengths) * len(contenders) * ROUNDS)
    mechanisms = {name: describe(name) for name in names}
    for name, row in mechanisms.items():
        progress.say(f"exact: {name}")
        row["error"] = error(name, causal=False)
        row["causal_error"] = error(name, causal=True) if get_attention(name).supports_causal else None
        progress.advance()
    for length in lengths:
        progress.say(f"fast: N={length}")
        rows, left_out = race(contenders, length, False, ROUNDS, [TRAINING], after_call=progress.advance)
        for row in rows:
            if row["contender"] in mechanisms:
                milliseconds = 1e3 * sorted(row["seconds"])[len(row["seconds"]) // 2]
                cost = {"milliseconds": milliseconds, "speedup": row["speedup"]["median"]}
                mechanisms[row["contender"]]["lengths"][length] = cost
    progress.close()
    write({"environment": run_record("mechanisms", argv), "mechanisms": mechanisms}, lengths, arguments.output)
    return 0


def describe(name: str) -> dict:
    cls = get_attention(name)
    abilities = [word for flag, word in ABILITIES.items() if getattr(cls, f"supports_{flag}")]
    abilities += ["weights"] * cls.has_weights() + ["grid"] * cls.needs_grid + ["fixed length"] * cls.fixed_length
    return {
        "paper": cls.paper,
        "cost": f"O({cls.cost})",
        "can": abilities,
        "against": mechanism(name).against,
        "lengths": {},
    }


@torch.no_grad()
def error(name: str, causal: bool) -> float:
    """The largest difference between fast form and formula, in float64, with parameters off their initial values."""
    generator = torch.Generator().manual_seed(0)
    attention = build(name, causal=causal, **EXACT).double()
    for parameter in attention.parameters():
        parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    length = EXACT["length"]
    x = torch.randn(2, length, EXACT["hidden_size"], generator=generator, dtype=torch.float64)
    grid = grid_for(attention, length)
    return (attention(x, **grid).hidden_states - attention.reference(x, **grid)).abs().max().item()


def write(results: dict, lengths: list[int], output: Path) -> None:
    header = [*HEADER, *(f"N={length}" for length in lengths), "can"]
    rows = [cells(name, row, lengths) for name, row in results["mechanisms"].items()]
    print(describe_run(results["environment"]), end="\n\n")
    print(text_table(header, rows, "<<<" + ">" * (2 + len(lengths)) + "<"))
    notes = (
        "error: fast form against the literal formula, float64. N=...: forward+backward, ms, and speed against SDPA "
        "(2× is twice as fast; † with projections, against softmax attention with its own)."
    )
    print(f"\n{notes}")
    picture = output / "mechanisms.png"
    draw_mechanisms(results["mechanisms"], lengths).save(picture)
    write_files("mechanisms", results, f"{markdown_table(header, rows)}\n\n{notes}", output, picture)


def cells(name: str, row: dict, lengths: list[int]) -> list[str]:
    costs = [row["lengths"].get(length) for length in lengths]
    shown = [f"{cost['milliseconds']:.1f} ms {significant(cost['speedup'])}×" if cost else "–" for cost in costs]
    errors = ["–" if e is None else f"{e:.0e}" for e in (row["error"], row["causal_error"])]
    return [name + "†" * (row["against"] == MODULE), row["paper"], row["cost"], *errors, *shown, ", ".join(row["can"])]


if __name__ == "__main__":
    raise SystemExit(main())
