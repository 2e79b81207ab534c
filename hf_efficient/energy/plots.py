"""Pictures of energies, as PNG files. matplotlib is imported when one is drawn, and needs no display."""

from pathlib import Path

from .experiment_report import Analysis
from .report import COMPONENTS, METHODS, EnergyReport

COLOURS = {"cpu": "#4c72b0", "gpu": "#55a868", "ram": "#b0b0b0"}


def _figure(width: float, height: float):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plot_report(report: EnergyReport, path: str | Path) -> None:
    """A bar for each phase of each epoch, of its components' joules."""
    steps = report.steps()
    figure = _figure(max(5.0, min(16.0, 1.5 + 0.35 * len(steps))), 3.5)
    axes = figure.subplots()
    below = [0.0] * len(steps)
    for name in COMPONENTS:
        joules = [report.joules(phase, epoch, name) or 0.0 for phase, epoch in steps]
        if any(joules):
            known = next((METHODS[part.method] for part in report.components if part.name == name), "unknown")
            axes.bar(range(len(steps)), joules, bottom=below, color=COLOURS[name], label=f"{name.upper()}, {known}")
        below = [low + joule for low, joule in zip(below, joules, strict=True)]
    labels = [f"{phase} {epoch}" if epoch else phase for phase, epoch in steps]
    every = max(1, len(steps) // 24)
    axes.set_xticks(range(0, len(steps), every), labels[::every], rotation=60, ha="right", fontsize=8)
    axes.set_ylabel("joules")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def plot_energies(analysis: Analysis, path: str | Path) -> None:
    """Every repetition's training energy as a dot, with the mean or median and its interval."""
    figure = _figure(max(4.0, 1.5 + 1.2 * len(analysis.variants)), 3.5)
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
    figure = _figure(4.5, 3.5)
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
