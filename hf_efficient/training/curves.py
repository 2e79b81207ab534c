"""curves.png: how a run learned, from what it logged; the rest of that is in history.csv."""

from PIL import Image

from ..charts import COLOURS, as_image, new_figure
from ..model_card.trained_model import metric_of
from .history import history

Line = list[tuple[int, float]]  # step, value
OF = dict(zip(("training", "evaluation"), COLOURS, strict=False))
MARKED = 40  # lines of fewer points than that show each


def draw_curves(logs: list[dict], metric: str = "loss", best_step: int | None = None) -> Image.Image | None:
    """A panel for the loss, and one for the metric that checkpoints are chosen by, over the steps and the energy.

    A metric that is the loss in another unit, as bits per byte, is an axis at the right of its panel. None if nothing
    was logged.

    Args:
        best_step: of the checkpoint that was chosen, which is marked.
    """
    panels = curves(history(logs), metric)
    if not panels:
        return None
    name, joules = title_of(metric), joules_per_step(logs)
    unit = factor(panels.get("loss", {}).get("evaluation", []), panels.get(name, {}).get("evaluation", []))
    if unit and name != "loss":
        del panels[name]
    figure = new_figure(4.8 * len(panels), 3.4)
    for axes, (title, lines) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True):
        draw_panel(axes, title, lines, best_step)
        if title == "loss" and unit and name != "loss":
            axes.secondary_yaxis("right", functions=(lambda y: y * unit, lambda y: y / unit)).set_ylabel(name)
        if joules:
            add_energy(axes, joules)
    return as_image(figure)


def draw_panel(axes, title: str, lines: dict[str, Line], best_step: int | None) -> None:
    for label, points in lines.items():
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, color=OF[label], label=label, marker="." if len(points) < MARKED else None)
    axes.set(title=title, xlabel="step")
    axes.margins(0.06, 0.12)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    chosen = dict(lines.get("evaluation", [])).get(best_step)
    if chosen is not None:
        label = f"chosen: {chosen:.4g}, step {best_step:,}"
        axes.plot(best_step, chosen, "o", markersize=11, fillstyle="none", color="black", label=label)
    axes.legend(fontsize=8, frameon=False)


def curves(rows: list[dict], metric: str = "loss") -> dict[str, dict[str, Line]]:
    """Panel -> line -> points: loss and metric. The rest is much the same again, or a schedule."""
    panels: dict[str, dict[str, Line]] = {}
    for name in ("loss", "eval_loss", f"eval_{metric.removeprefix('eval_')}"):
        points = [(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)]
        if points:
            panels.setdefault(title_of(name), {})["evaluation" if name.startswith("eval_") else "training"] = points
    return panels


def title_of(metric: str) -> str:
    return metric_of(metric.removeprefix("eval_")).title


def factor(first: Line, second: Line) -> float | None:
    """What makes one line of the other; None if they differ by more, or can't be told apart from it."""
    if len(first) < 3 or [step for step, _ in first] != [step for step, _ in second] or not all(y for _, y in first):
        return None
    ratios = [b / a for (_, a), (_, b) in zip(first, second, strict=True)]
    return ratios[0] if ratios[0] and max(abs(ratio / ratios[0] - 1) for ratio in ratios) < 1e-3 else None


def joules_per_step(logs: list[dict]) -> float | None:
    """Of the whole run, evaluations included; None where no energy was measured."""
    measured = [(log["energy_total_kwh"], log["step"]) for log in logs if log.get("energy_total_kwh") and log["step"]]
    return 3.6e6 * measured[-1][0] / measured[-1][1] if measured else None


def add_energy(axes, joules: float) -> None:
    """A second axis: what had been spent by each step, on average."""
    most = joules * axes.get_xlim()[1]
    size, unit = (1, "J") if most < 5e3 else (1e3, "kJ") if most < 5e6 else (1e6, "MJ")
    each = joules / size
    top = axes.secondary_xaxis("top", functions=(lambda x: x * each, lambda x: x / each))
    top.set_xlabel(f"energy, {unit}", fontsize=8, color="grey")
    top.tick_params(labelsize=8, colors="grey")
