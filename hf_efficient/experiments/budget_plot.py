"""How runs of equal budgets learned, as a picture."""

from PIL import Image

from ..charts import COLOURS, as_image, label_ends, new_figure
from ..training.arguments import LOWER_IS_BETTER


def plot_curves(record: dict) -> Image.Image | None:
    """The validation metric over the time at the pace rehearsed, a line for each seed, named at its end.

    None if nothing was trained.
    """
    drawn = {name: arm for name, arm in record["arms"].items() if any(arm.get("curves", {}).values())}
    if not drawn:
        return None
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
    return as_image(figure)


def is_one_thread(arms: dict) -> bool:
    return all(arm["pace"]["threads"] == 1 for arm in arms.values())
