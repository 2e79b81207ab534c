"""Pictures of a comparison of energies."""

from collections.abc import Mapping
from textwrap import fill

from PIL import Image

from ..charts import COLOURS, as_image, new_figure
from .energy_analysis import Analysis
from .statistics import Summary


def plot_energies(analysis: Analysis, arms: Mapping[str, str] = {}) -> Image.Image:
    """Every repetition's training energy as a dot, with the mean or median and its interval.

    Args:
        arms: what each run is, in words.
    """
    figure = new_figure(8.0, 1.0 + 0.75 * len(analysis.variants))
    axes = figure.subplots()
    for place, ((name, summary), colour) in enumerate(zip(analysis.energies.items(), repeated(analysis), strict=True)):
        values = [outcome.train for outcome in analysis.outcomes if outcome.variant == name]
        axes.barh(place, summary.centre, height=0.5, color=colour, alpha=0.25)
        axes.plot(values, [place] * len(values), "o", color=colour, markersize=5)
        draw_intervals(axes, (summary.centre, place), colour, x=summary)
        most = max([*values, summary.high or 0])
        axes.annotate(
            shown(summary), (most, place), xytext=(8, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_yticks(range(len(analysis.variants)), [described(name, arms) for name in analysis.variants], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max(outcome.train for outcome in analysis.outcomes))
    axes.set_xlabel(f"training energy, J: each repetition, and {statistics(analysis)}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return as_image(figure)


def plot_trade_off(analysis: Analysis, arms: Mapping[str, str] = {}) -> Image.Image:
    """Micro-F1 over training energy: a dot for each repetition, and the means or medians with both intervals."""
    figure = new_figure(8.0, 4.0)
    axes = figure.subplots()
    for name, colour in zip(analysis.variants, repeated(analysis), strict=True):
        chosen = [outcome for outcome in analysis.outcomes if outcome.variant == name and outcome.f1_micro is not None]
        axes.plot(
            [outcome.train for outcome in chosen],
            [100 * outcome.f1_micro for outcome in chosen],
            "o",
            color=colour,
            alpha=0.5,
            markersize=5,
        )
        if (score := analysis.scores.get(name)) is None:
            continue
        energy = analysis.energies[name]
        draw_intervals(axes, (energy.centre, score.centre), colour, x=energy, y=score)
        end = (energy.centre if energy.high is None else energy.high, score.centre)
        axes.annotate(name, end, xytext=(6, 0), textcoords="offset points", color=colour, weight="bold", va="center")
        if arms.get(name, name) != name:
            axes.plot([], [], "s", color=colour, label=f"{name}: {arms[name]}")
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", fontsize=8, frameon=False)
    axes.margins(0.12, 0.12)
    axes.set_xlabel(f"training energy, J: each repetition, and {statistics(analysis)}", fontsize=9)
    axes.set_ylabel("micro-F1, %")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return as_image(figure)


def draw_intervals(axes, at: tuple[float, float], colour: str, **summaries: Summary) -> None:
    """A square with the intervals that there are, along x, y or both."""
    errors = {
        f"{axis}err": [[one.centre - one.low], [one.high - one.centre]]
        for axis, one in summaries.items()
        if one.low is not None
    }
    axes.errorbar(*([x] for x in at), **errors, fmt="s", color=colour, markeredgecolor="black", capsize=4, zorder=3)


def shown(summary: Summary) -> str:
    interval = "" if summary.low is None else f" [{summary.low:,.0f}, {summary.high:,.0f}]"
    return f"{summary.centre:,.0f} J{interval}"


def statistics(analysis: Analysis) -> str:
    found = dict.fromkeys(f"{summary.statistic}s" for summary in analysis.energies.values())
    intervals = any(summary.low is not None for summary in analysis.energies.values())
    return " or ".join(found) + (" with 95 % intervals" if intervals else "")


def described(name: str, arms: Mapping[str, str]) -> str:
    words = arms.get(name, name)
    return name if words == name else f"{name}\n{fill(words, 40)}"


def repeated(analysis: Analysis) -> list[str]:
    """A colour for each run."""
    return [COLOURS[i % len(COLOURS)] for i in range(len(analysis.variants))]
