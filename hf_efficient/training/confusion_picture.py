"""What a classifier takes for what, as a picture."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from ..charts import COLOURS, as_image, new_figure

MOST_CLASSES = 20  # of a matrix that can be read
MOST_PAIRS = 20
LONGEST = 24  # letters of a name


def draw_confusion(labels: Sequence[int], predictions: Sequence[int], names: Sequence[str]) -> Image.Image:
    """A matrix of counts, a row for each true class; of more than 20 classes, the pairs that are confused most.

    Args:
        labels, predictions: (N,), numbers of classes.
        names: of all classes.
    """
    counts = np.zeros((len(names), len(names)), dtype=int)
    np.add.at(counts, (np.asarray(labels), np.asarray(predictions)), 1)
    right, total = int(counts.trace()), int(counts.sum())
    title = f"{right:,} of {total:,} right ({right / max(1, total):.1%})"
    names = [shortened(name) for name in names]
    return (draw_matrix if len(names) <= MOST_CLASSES else draw_pairs)(counts, names, title)


def draw_matrix(counts: np.ndarray, names: Sequence[str], title: str) -> Image.Image:
    """Right answers in blue and wrong ones in red, the darker the larger their share of a class."""
    shares = counts / counts.sum(1, keepdims=True).clip(1)
    wrong = shares * (1 - np.eye(len(names)))
    depth = np.where(np.eye(len(names), dtype=bool), 0.85 * shares, 0.85 * wrong / max(0.05, wrong.max()))
    from matplotlib.colors import to_rgb

    inks = np.array([to_rgb(COLOURS[1]), to_rgb(COLOURS[0])])[np.eye(len(names), dtype=int)]
    side = 1.6 + 0.46 * len(names)
    figure = new_figure(max(3.6, side), max(3.0, side))
    axes = figure.subplots()
    axes.imshow(1 - depth[..., None] * (1 - inks))
    for i, j in zip(*counts.nonzero(), strict=True):
        colour = "white" if depth[i, j] > 0.55 else "black"
        axes.text(j, i, f"{counts[i, j]}", ha="center", va="center", fontsize=8, color=colour)
    turned = {"rotation": 90} if max(map(len, names)) > 3 else {}
    axes.set_xticks(range(len(names)), names, fontsize=8, **turned)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set(xlabel="what it says", ylabel="what it is")
    axes.set_title(title, fontsize=10)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return as_image(figure)


def draw_pairs(counts: np.ndarray, names: Sequence[str], title: str) -> Image.Image:
    """What is taken for something else most often, as a share of its class."""
    wrong = counts * (1 - np.eye(len(names), dtype=int))
    sizes = counts.sum(1)
    shares = wrong / sizes[:, None].clip(1)
    order = np.argsort(-shares, axis=None, kind="stable")[:MOST_PAIRS]
    pairs = [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, wrong.shape), strict=True) if wrong[i, j]]
    figure = new_figure(7.0, 1.3 + 0.24 * max(1, len(pairs)))
    axes = figure.subplots()
    for place, (i, j) in enumerate(pairs):
        axes.barh(place, 100 * shares[i, j], color=COLOURS[1], alpha=0.6)
        note = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate(f"{wrong[i, j]} of {sizes[i]}", (100 * shares[i, j], place), **note)
    axes.set_yticks(range(len(pairs)), [f"{names[i]} → {names[j]}" for i, j in pairs], fontsize=8)
    axes.invert_yaxis()
    axes.margins(0.12, 0.02)
    axes.set_xlabel(f"% of a class, those confused most of {len(names)} classes", fontsize=8)
    axes.set_title(f"{title}; what it is → what it says", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return as_image(figure)


def shortened(name: str) -> str:
    """The first of several names, in as many letters as there is room for."""
    first = str(name).split(",")[0]
    return first if len(first) <= LONGEST else first[: LONGEST - 1] + "…"
