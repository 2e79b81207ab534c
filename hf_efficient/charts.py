"""What charts share: a matplotlib figure without a display, as a PIL image, with names beside lines, not in a legend.

matplotlib is imported when something is drawn.
"""

from collections.abc import Iterable
from io import BytesIO

from PIL import Image

# Told apart by all eyes.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#882255")
GREY = "#b8b8b8"  # of what is there for comparison
DPI = 120


def new_figure(width: float, height: float):
    """A matplotlib Figure of so many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def as_image(figure) -> Image.Image:
    file = BytesIO()
    figure.savefig(file, dpi=DPI)
    return Image.open(file).convert("RGB")


def label_ends(axes, ends: Iterable[tuple[float, str, str]], fontsize: float = 8) -> None:
    """Names with their colours to the right of the lines that end at these values, apart where lines end together.

    Call it when the axes' limits are what they will be.
    """
    to_share = axes.transData + axes.transAxes.inverted()
    wanted = sorted((float(to_share.transform((axes.get_xlim()[1], value))[1]), *rest) for value, *rest in ends)
    gap = 1.35 * fontsize / 72 / (axes.get_position().height * axes.figure.get_figheight())
    for place, (_, name, colour) in zip(spread([place for place, *_ in wanted], gap), wanted, strict=True):
        axes.annotate(name, (1.01, place), xycoords="axes fraction", color=colour, fontsize=fontsize, va="center")


def spread(places: list[float], gap: float) -> list[float]:
    """Ascending places at least `gap` apart, each group of them around where its members want to be."""
    groups: list[list[float]] = []  # [middle, members]
    for place in places:
        groups.append([place, 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            middle, members = groups.pop()
            before, others = groups.pop()
            groups.append([(middle * members + before * others) / (members + others), members + others])
    return [middle + gap * (i - (members - 1) / 2) for middle, members in groups for i in range(int(members))]
