"""How runs of equal budgets learned, as a picture."""

from pathlib import Path

from ..energy.plots import new_figure
from ..training.arguments import LOWER_IS_BETTER

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # told apart by all eyes


def plot_curves(record: dict, path: str | Path) -> None:
    """The validation metric over the time at the pace rehearsed, a line for each seed, named at its end."""
    drawn = {name: arm for name, arm in record["arms"].items() if any(arm["curves"].values())}
    if not drawn:
        return
    figure = new_figure(7.0, 4.0)
    axes = figure.subplots()
    factor = 1 if record["metric"].endswith(LOWER_IS_BETTER) else 100
    ends = []
    for (name, arm), colour in zip(drawn.items(), COLOURS * len(drawn), strict=False):
        each, last = arm["pace"]["seconds_per_step"] / 60, []
        for points in filter(None, arm["curves"].values()):
            axes.plot([each * step for step, _ in points], [factor * y for _, y in points], ".-", color=colour, lw=1.2)
            last.append(factor * points[-1][1])
        ends.append((sum(last) / len(last), name, colour))
    label_ends(axes, ends)
    axes.set_xlabel("minutes of one core" if is_one_thread(drawn) else "minutes")
    metric = record["metric"].partition("_")[2].replace("_", " ")
    axes.set_ylabel(f"validation, {metric}" + (" %" if factor == 100 else ""))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def label_ends(axes, ends: list[tuple[float, str, str]]) -> None:
    """Names to the right of the lines, moved apart where lines end together."""
    low, high = axes.get_ylim()
    place, apart = low, 0.055 * (high - low)
    for value, name, colour in sorted(ends):
        place = max(value, place + apart)
        axes.annotate(name, (1.01, place), xycoords=("axes fraction", "data"), color=colour, fontsize=8, va="center")


def is_one_thread(arms: dict) -> bool:
    return all(arm["pace"]["threads"] == 1 for arm in arms.values())
