"""The mechanism table: every attention mechanism built, run, held to its own formula, and timed. make demo-attention

Per mechanism: the largest difference between its fast form and its literal O(N²) form in float64, bidirectional and
causal; its time, forward and backward, at three lengths, against PyTorch's fused softmax attention; what it can do.
"""

import argparse
import json
from pathlib import Path

import matplotlib
import torch
from contenders import MODULE, build, mechanism, module, sdpa, where
from measure import (
    TRAINING,
    Progress,
    describe_environment,
    environment,
    keep_freed_memory,
    limit_memory,
    markdown_table,
    positive,
    race,
    significant,
    text_table,
)

from hf_efficient.attention import get_attention, list_attentions

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator

ROUNDS = 3
EXACT = {"length": 96, "hidden_size": 32, "num_heads": 4}  # the literal forms are slow
HEADER = ["mechanism", "paper", "cost", "error", "causal error"]
ABILITIES = {"causal": "causal", "recurrent": "recurrent", "key_mask": "mask", "weights": "weights"}


def parse_arguments() -> argparse.Namespace:
    names = list_attentions()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=positive, nargs="+", default=[256, 1024, 4096], metavar="N")
    parser.add_argument("--mechanisms", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--output", type=Path, default=Path("results/demo_attention"), metavar="DIR")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    keep_freed_memory()
    arguments.output.mkdir(parents=True, exist_ok=True)
    limit_memory()
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
    write({"environment": environment(), "mechanisms": mechanisms}, lengths, arguments.output)


def describe(name: str) -> dict:
    cls = get_attention(name)
    abilities = [word for flag, word in ABILITIES.items() if getattr(cls, f"supports_{flag}")]
    abilities += ["grid"] * cls.needs_grid + ["fixed length"] * cls.fixed_length
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
    grid = where(attention, length)
    return (attention(x, **grid).hidden_states - attention.reference(x, **grid)).abs().max().item()


def write(results: dict, lengths: list[int], output: Path) -> None:
    header = [*HEADER, *(f"N={length}" for length in lengths), "can"]
    rows = [cells(name, row, lengths) for name, row in results["mechanisms"].items()]
    print(describe_environment(results["environment"]), end="\n\n")
    print(text_table(header, rows, "<<<" + ">" * (2 + len(lengths)) + "<"))
    notes = (
        "error: fast form against the literal formula, float64. N=...: forward+backward, ms, and speed against SDPA "
        "(2× is twice as fast; † with projections, against softmax attention with its own)."
    )
    print(f"\n{notes}")
    (output / "mechanisms.json").write_text(json.dumps(results, indent=1) + "\n")
    (output / "mechanisms.md").write_text(f"{markdown_table(header, rows)}\n\n{notes}\n")
    draw(results["mechanisms"], lengths, output / "mechanisms.png")
    print(
        f"\nWritten: {output}/mechanisms.json, .md and .png. Next: make bench ARGS=--help, or the README's quickstart."
    )


def cells(name: str, row: dict, lengths: list[int]) -> list[str]:
    costs = [row["lengths"].get(length) for length in lengths]
    shown = [f"{cost['milliseconds']:.1f} ms {significant(cost['speedup'])}×" if cost else "–" for cost in costs]
    errors = ["–" if e is None else f"{e:.0e}" for e in (row["error"], row["causal_error"])]
    return [marked(name, row), row["paper"], row["cost"], *errors, *shown, ", ".join(row["can"])]


def marked(name: str, row: dict) -> str:
    return name + "†" * (row["against"] == MODULE)


def draw(mechanisms: dict, lengths: list[int], file: Path) -> None:
    """Horizontal bars from SDPA's 1×, one per length, the fastest mechanism at the longest length on top."""
    order = sorted(mechanisms, key=lambda name: mechanisms[name]["lengths"].get(lengths[-1], {}).get("speedup", 0))
    figure, axis = plt.subplots(figsize=(9, 1.5 + 0.42 * len(order)))
    colours = plt.get_cmap("viridis")
    for i, length in enumerate(lengths):
        places, widths = [], []
        for place, name in enumerate(order):
            if cost := mechanisms[name]["lengths"].get(length):
                places.append(place + 0.27 * ((len(lengths) - 1) / 2 - i))
                widths.append(cost["speedup"] - 1)
        colour = colours(0.85 - 0.75 * i / max(1, len(lengths) - 1))
        axis.barh(places, widths, height=0.25, left=1, color=colour, label=f"N={length}")
    axis.axvline(1, color="black", linewidth=1)
    axis.set(xscale="log", xlabel="speed against SDPA, forward+backward, bidirectional; right of 1×: faster")
    axis.set_yticks(range(len(order)), [marked(name, mechanisms[name]) for name in order])
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    axis.legend(loc="lower right")
    axis.set_title("Attention mechanisms († whole modules, against softmax attention with projections)", fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
