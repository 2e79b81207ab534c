"""The plots: speed-up against length, and the bars of the mechanism table."""

import re
from pathlib import Path

import matplotlib

from benchmarks.ours import MODULE, SDPA
from benchmarks.record import describe_run
from benchmarks.reports import DIRECTIONS, curves, marked
from benchmarks.timing import crossover, crossover_text
from benchmarks.workloads import TRAINING
from hf_efficient.attention import list_attentions

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator


def draw_speedups(results: dict, file: Path) -> None:
    """Speed-up against length, forward+backward, one panel per direction; fastest first in the legend."""
    panels = {direction: found for direction in DIRECTIONS if (found := curves(results, direction, TRAINING))}
    figure, axes = plt.subplots(1, len(panels), figsize=(8 * len(panels), 6.5), squeeze=False, sharey=True)
    for axis, (direction, found) in zip(axes[0], panels.items(), strict=True):
        axis.axhline(1, color="black", linewidth=1.2)
        shown = {name: rows for name, rows in found.items() if name not in (SDPA, MODULE, "softmax")}
        for rows in sorted(shown.values(), key=lambda rows: -rows[max(rows)]["speedup"]["median"]):
            plot_curve(axis, rows)
        lengths = sorted({length for rows in found.values() for length in rows})
        axis.set(xscale="log", yscale="log", xlabel="sequence length N", title=direction)
        axis.set_xticks(lengths, [str(length) for length in lengths])
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda y, _: f"{y:g}×")
        axis.grid(alpha=0.3)
        axis.legend(title="fastest first; ● faster from N on", fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
    axes[0][0].set_ylabel("speed against SDPA, forward+backward")
    machine = describe_run(results["environment"]).split(", commit")[0]
    figure.suptitle(f"1× is SDPA (†: softmax attention with projections); dashed: peers. {machine}", fontsize=9)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def plot_curve(axis, rows: dict[int, dict]) -> None:
    """One contender's curve, and a dot where it overtakes; a peer's has the colour of the mechanism it implements."""
    names, row = list_attentions(), next(iter(rows.values()))
    name = row["contender"]
    kin = names.index(re.match(r"\w+", name)[0])
    speedups = [row["speedup"]["median"] for row in rows.values()]
    at = crossover(list(rows), speedups)
    inside = min(rows) < at < max(rows)
    label = f"{marked(row)}  ● {crossover_text(list(rows), speedups)}" if inside else marked(row)
    colour, marker = plt.get_cmap("tab20")(kin % 20), "osD^v<>pPX*h"[kin % 12]
    dashes = {"m=256": ":", "module": "-."}.get(name.split()[-1], "--")
    style = {"linestyle": "-", "marker": marker, "markersize": 5} if name in names else {"linestyle": dashes}
    axis.plot(list(rows), speedups, label=label, color=colour, linewidth=1.4, **style)
    if inside:
        axis.plot(at, 1, "o", color=colour, markersize=9, markeredgecolor="black")


def draw_mechanisms(mechanisms: dict, lengths: list[int], file: Path) -> None:
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
    axis.set_yticks(range(len(order)), [name + "†" * (mechanisms[name]["against"] == MODULE) for name in order])
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    axis.legend(loc="lower right")
    axis.set_title("Attention mechanisms († whole modules, against softmax attention with projections)", fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)
