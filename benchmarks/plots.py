"""The plots: speed-up against length, the bars of the mechanism table, and those of the models."""

from PIL import Image

from benchmarks.ours import MODULE, SDPA
from benchmarks.record import describe_run
from benchmarks.reports import DIRECTIONS, curves, marked
from benchmarks.timing import crossover
from benchmarks.workloads import TRAINING
from hf_efficient.attention import list_attentions
from hf_efficient.charts import COLOURS, GREY, as_image, label_ends, new_figure

BASE = "dimgrey"  # the line of what others are compared with
MOST_LINES = 8  # in colour and with their names, in a panel; the last of them is a peer's


def draw_speedups(results: dict) -> Image.Image:
    """Speed-up against length, forward+backward, one panel per direction: the fastest by name, the others grey."""
    panels = {direction: found for direction in DIRECTIONS if (found := curves(results, direction, TRAINING))}
    for found in panels.values():
        for name in (SDPA, MODULE, "softmax"):
            found.pop(name, None)
    named = {direction: fastest(found) for direction, found in panels.items()}
    colours = colours_of(named)
    figure = new_figure(6.6 * len(panels), 5.0)
    for axis, (direction, found) in zip(
        figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels.items(), strict=True
    ):
        axis.set(xscale="log", yscale="log", xlabel="sequence length N", title=direction)
        axis.axhline(1, color=BASE, linewidth=1.2)
        for name, rows in found.items():
            colour = colours[direction].get(name)
            style = {"linewidth": 1.8, "marker": "o", "markersize": 3.5} if colour else {"linewidth": 0.9, "zorder": 1}
            dashes = "-" if name in list_attentions() else "--"
            speedups = [row["speedup"]["median"] for row in rows.values()]
            axis.plot(list(rows), speedups, color=colour or GREY, linestyle=dashes, **style)
        lengths = sorted({length for rows in found.values() for length in rows})
        axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda y, _: f"{y:g}×")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    for axis, (direction, found) in zip(figure.axes, panels.items(), strict=True):  # when all limits are known
        ends = [
            (last_speedup(found[name]), labelled(found[name]), colour) for name, colour in colours[direction].items()
        ]
        label_ends(axis, [*ends, (1.0, "SDPA", BASE)])
    figure.axes[0].set_ylabel("times as fast as SDPA, forward+backward")
    machine = describe_run(results["environment"]).split(", commit")[0]
    figure.suptitle(
        f"in brackets: the length from which on it is faster; † against softmax attention with projections; "
        f"dashed: other packages; grey: the others\n{machine}",
        fontsize=8,
        color=BASE,
    )
    return as_image(figure)


def fastest(found: dict[str, dict[int, dict]]) -> list[str]:
    """The contenders to be named: the fastest at the longest length, and the fastest peer."""
    order = sorted(found, key=lambda name: -last_speedup(found[name]))
    ours = [name for name in order if name in list_attentions()]
    peers = [name for name in order if name not in list_attentions()][:1]
    chosen = {*ours[: MOST_LINES - len(peers)], *peers}
    return [name for name in order if name in chosen]


def last_speedup(rows: dict[int, dict]) -> float:
    return rows[max(rows)]["speedup"]["median"]


def colours_of(named: dict[str, list[str]]) -> dict[str, dict[str, str]]:
    """Panel -> name -> colour; names that several panels have look alike in all."""
    shared = [name for name in next(iter(named.values())) if all(name in names for names in named.values())]
    return {
        panel: dict(zip([*shared, *(name for name in names if name not in shared)], COLOURS, strict=False))
        for panel, names in named.items()
    }


def labelled(rows: dict[int, dict]) -> str:
    """A contender's name, with the length from which on it is faster, if it is not always or never."""
    at = crossover(list(rows), [row["speedup"]["median"] for row in rows.values()])
    inside = min(rows) < at < max(rows)
    return marked(next(iter(rows.values()))) + (f" [{float(f'{at:.2g}'):.0f}]" if inside else "")


def draw_model_speeds(*records: dict) -> Image.Image:
    """A bar for each speed of a model over its peer's, with quartiles; the target as a mark.

    Args:
        records: results of `benchmarks.models`.
    """
    rows = [figure for record in records for figure in record["figures"] if is_speed(figure)]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    figure = new_figure(8.0, 1.0 + 0.24 * len(rows) + 0.3 * len(groups))
    axis, place, ticks = figure.subplots(), 0.0, {}
    axis.axvline(1, color="black", linewidth=1)
    over = {"textcoords": "offset points", "xytext": (4, 0), "va": "center"}  # what is written over the bars
    for group in groups:
        axis.annotate(group, (0, place), fontsize=9, weight="bold", backgroundcolor="white", **over)
        place += 1
        for row in (row for row in rows if row["group"] == group):
            low, high = (float(word) for word in row["note"].split()[1:])
            axis.barh(place, row["value"], height=0.75, color=COLOURS[row["value"] < 1], alpha=0.35)
            axis.plot([low, high], [place, place], color="black", linewidth=1.2)
            if row["bound"] > 0:
                axis.plot(row["bound"], place, "|", color=COLOURS[1], markersize=12, markeredgewidth=2)
            axis.annotate(f"{row['value']:.2f}×", (0, place), fontsize=8, **over)
            ticks[place] = row["claim"]
            place += 1
        place += 0.3
    axis.set_yticks(list(ticks), list(ticks.values()), fontsize=8)
    axis.set_ylim(place, -0.8)
    axis.set_xlim(left=0)
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    machine = describe_run(records[0]["environment"]).split(", commit")[0]
    note = f"times as fast as transformers' own, or what is named; thin line: quartiles; orange: our goal\n{machine}"
    figure.supxlabel(note, fontsize=8, color=BASE)
    return as_image(figure)


def is_speed(figure: dict) -> bool:
    """Whether more is faster, of a figure with quartiles: not a memory, a share or a length."""
    return not figure["at_most"] and figure["note"].startswith("quartiles ")


def draw_mechanisms(mechanisms: dict, lengths: list[int]) -> Image.Image:
    """Horizontal bars from SDPA's 1×, one per length, the fastest mechanism at the longest length on top."""
    order = sorted(mechanisms, key=lambda name: mechanisms[name]["lengths"].get(lengths[-1], {}).get("speedup", 0))
    from matplotlib.ticker import LogLocator

    figure = new_figure(9, 1.5 + 0.42 * len(order))
    axis = figure.subplots()
    for i, length in enumerate(lengths):
        places, widths = [], []
        for place, name in enumerate(order):
            if cost := mechanisms[name]["lengths"].get(length):
                places.append(place + 0.27 * ((len(lengths) - 1) / 2 - i))
                widths.append(cost["speedup"] - 1)
        axis.barh(places, widths, height=0.25, left=1, color=COLOURS[i % len(COLOURS)], label=f"N={length}")
    axis.axvline(1, color="black", linewidth=1)
    axis.set(xscale="log", xlabel="speed against SDPA, forward+backward, bidirectional; right of 1×: faster")
    axis.set_yticks(range(len(order)), [name + "†" * (mechanisms[name]["against"] == MODULE) for name in order])
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    axis.legend(loc="lower right")
    axis.set_title("Attention mechanisms († whole modules, against softmax attention with projections)", fontsize=10)
    return as_image(figure)
