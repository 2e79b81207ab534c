"""Pictures of a comparison of energies, as PNG files."""

from pathlib import Path

from ..energy.plots import COLOURS, new_figure
from .energy_analysis import Analysis


def plot_energies(analysis: Analysis, path: str | Path) -> None:
    """Every repetition's training energy as a dot, with the mean or median and its interval."""
    figure = new_figure(max(4.0, 1.5 + 1.2 * len(analysis.variants)), 3.5)
    axes = figure.subplots()
    for place, (name, summary) in enumerate(analysis.energies.items()):
        values = [outcome.train for outcome in analysis.outcomes if outcome.variant == name]
        axes.plot([place] * len(values), values, "o", color=COLOURS["cpu"], alpha=0.5)
        if summary.low is not None:
            ends = [[max(0.0, summary.centre - summary.low)], [max(0.0, summary.high - summary.centre)]]
            axes.errorbar([place + 0.15], [summary.centre], ends, fmt="s", color="black", capsize=4)
    axes.set_xticks(range(len(analysis.variants)), analysis.variants)
    axes.set_xlim(-0.5, len(analysis.variants) - 0.5)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("training energy, J")
    figure.savefig(path, dpi=120)


def plot_trade_off(analysis: Analysis, path: str | Path) -> None:
    """Micro-F1 over training energy, a dot for each repetition."""
    figure = new_figure(4.5, 3.5)
    axes = figure.subplots()
    for name in analysis.variants:
        chosen = [outcome for outcome in analysis.outcomes if outcome.variant == name and outcome.f1_micro is not None]
        axes.plot(
            [outcome.train for outcome in chosen], [100 * outcome.f1_micro for outcome in chosen], "o", label=name
        )
    axes.set_xlabel("training energy, J")
    axes.set_ylabel("micro-F1, %")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
