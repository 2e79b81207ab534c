"""Pictures of energies, as PNG files. matplotlib is imported when one is drawn, and needs no display."""

from pathlib import Path

from ..charts import new_figure
from .report import COMPONENTS, METHODS, EnergyReport

COLOURS = {"cpu": "#4c72b0", "gpu": "#55a868", "ram": "#b0b0b0"}


def plot_report(report: EnergyReport, path: str | Path) -> None:
    """A bar for each phase of each epoch, of its components' joules."""
    steps = report.steps()
    figure = new_figure(max(5.0, min(16.0, 1.5 + 0.35 * len(steps))), 3.5)
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
