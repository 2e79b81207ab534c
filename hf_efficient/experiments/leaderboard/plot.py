"""Score against cost, as inline SVG: a dot and a name for each mechanism, and the line of those that none beats."""

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 520, 320
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 24


def scatter(found: Sequence, best: set[str], field: str, label: str, scale: float, metric: str) -> str:
    """A figure; empty where nothing has that cost.

    Args:
        found: entries with `name`, `task`, `score`, `metric` and the field.
        best: names to mark.
        scale: what the field is divided by.
        metric: what the score is called.
    """
    points = [(x, getattr(x, field) / scale, value_of(x)) for x in found if getattr(x, field)]
    if len(points) < 2:
        return ""
    across, up = nice_range([p[1] for p in points]), nice_range([p[2] for p in points])

    def place(x: float, y: float) -> tuple[float, float]:
        column = LEFT + (x - across[0]) / (across[-1] - across[0]) * (WIDTH - LEFT - RIGHT)
        row = HEIGHT - BOTTOM - (y - up[0]) / (up[-1] - up[0]) * (HEIGHT - TOP - BOTTOM)
        return round(column, 1), round(row, 1)

    parts = []
    for y in up:
        row = place(across[0], y)[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{row}" y2="{row}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{row + 4}" text-anchor="end">{y:g}</text>')
    for x in across:
        column = place(x, up[0])[0]
        parts.append(f'<text x="{column}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    parts.append(line([place(x, y) for _, x, y in staircase(points)]))
    dots = [place(x, y) for _, x, y in points]
    taken = [(column - 4, row + 4, 8) for column, row in dots]  # left, base line and width of what stands there
    for entry, x, y in sorted(points, key=lambda p: p[0].name not in best):
        column, row = place(x, y)
        mark, name = ' class="best"' if entry.name in best else "", escape(entry.name)
        title = f"<title>{name}: {y:g}, {x:,.4g}</title>"
        anchor = f' data-name="{entry.task}-{name}"'
        parts.append(f'<circle cx="{column}" cy="{row}" r="4"{mark}{anchor}>{title}</circle>')
        if (spot := free_spot(column, row, 6.2 * len(entry.name), taken)) is not None:
            parts.append(f'<text x="{spot[0]}" y="{spot[1]}"{mark}{anchor}>{name}</text>')
    title = f"{metric} against {label}"
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    return f"<figure>{svg}<figcaption>{escape(title)}</figcaption></figure>"


def value_of(entry) -> float:
    """As it is drawn."""
    percent = not entry.metric.endswith(("loss", "perplexity", "bits_per_byte"))
    return 100 * entry.score if percent else entry.score


def staircase(points: Sequence[tuple]) -> list[tuple]:
    """Those that no cheaper one is as good as, by cost."""
    lower = points[0][0].metric.endswith(("loss", "perplexity", "bits_per_byte"))
    kept, record = [], math.inf
    for point in sorted(points, key=lambda p: (p[1], p[2] if lower else -p[2])):
        value = point[2] if lower else -point[2]
        if value < record:
            kept.append(point)
            record = value
    return kept


def line(places: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="front" points="{" ".join(f"{x},{y}" for x, y in places)}"/>'


def nice_range(values: Sequence[float], most: int = 6) -> list[float]:
    """Round numbers from below the least to above the largest."""
    low, high = min(values), max(values)
    spread = (high - low) or abs(high) or 1.0
    power = 10 ** math.floor(math.log10(spread / most))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if spread / (power * factor) <= most - 1)
    first = math.floor(low / step - 0.1)
    last = math.ceil(high / step + 0.1)
    return [round(number * step, 10) for number in range(first, last + 1)]


def free_spot(x: float, y: float, width: float, taken: list) -> tuple[float, float] | None:
    """Where a name fits beside its dot, to the right or left, above or below; None where others are in the way."""
    for left, base in ((x + 7, y + 4), (x - 7 - width, y + 4), (x - width / 2, y - 8), (x - width / 2, y + 15)):
        inside = left > LEFT and left + width < WIDTH - 2 and TOP < base < HEIGHT - BOTTOM
        if inside and not any(abs(base - b) < 12 and left < a + w and a < left + width for a, b, w in taken):
            taken.append((left, base, width))
            return round(left, 1), round(base, 1)
    return None
