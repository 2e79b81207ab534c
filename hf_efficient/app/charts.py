"""Charts as inline SVG: they follow the page's colours, in the dark too, and ask nobody for a script or a font."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 420, 280
LEFT, RIGHT, TOP, BOTTOM = 52, 92, 14, 40  # margins; names of lines stand in the right one
COLOURS = ("#2f7ed8", "#e4572e", "#2a9d6f", "#b5651d", "#9b5de5", "#d1495b", "#0a9396", "#8a8f00")
LINE_HEIGHT = 12


class Point(NamedTuple):
    name: str
    x: float
    y: float
    is_best: bool = False  # on the front


class Axis:
    """Numbers of one direction -> places between `start` and `end`; by powers where `log`."""

    def __init__(
        self,
        values: Sequence[float],
        start: float,
        end: float,
        log: bool,
        from_zero: bool = False,
        padding: float = 0.0,
    ):
        low, high = min(values), max(values)
        self.log = log and low > 0
        low = 0.0 if from_zero and not self.log else low
        if self.log:
            low, high = math.log2(low), math.log2(high)
        room = padding * (high - low)
        low, high = low if from_zero else low - room, high + room
        if high - low < 1e-9 * max(abs(high), 1e-9):
            room = 1.0 if self.log else max(abs(high) * 0.1, 1e-9)
            low, high = (low if from_zero else low - room), high + room
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        value = math.log2(value) if self.log else value
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            step = max(1, math.ceil((last - first + 1) / 6))
            return [2.0**power for power in range(first, last + 1, step)]
        rough = (self.high - self.low) / 4
        unit = 10 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
        return [step * i for i in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """0.00012, 1.5, 2,048, 12k, 3.1M"""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == 'k' else size):.3g}{suffix}"
    return f"{value:,.0f}" if abs(value) >= 100 and value == round(value) else f"{value:.3g}"


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]], title: str, x_label: str, y_label: str, log: bool = False
) -> str:
    """A line for each name, named at its end. `log`: both axes by powers of two; otherwise y starts at 0."""
    series = {name: points for name, points in series.items() if points}
    if not series:
        return ""
    everything = [point for points in series.values() for point in points]
    x_axis = Axis([x for x, _ in everything], LEFT, WIDTH - RIGHT, log)
    y_axis = Axis([y for _, y in everything], HEIGHT - BOTTOM, TOP, log, from_zero=not log)
    parts, names = [], []
    for colour, (name, points) in zip(colours(len(series)), series.items(), strict=True):
        places = [(x_axis(x), y_axis(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if log or len(points) == 1:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places]
        names.append((places[-1][1], name, colour))
    parts += end_labels(names)
    return frame(parts, x_axis, y_axis, title, x_label, y_label)


def scatter(points: Sequence[Point], title: str, x_label: str, y_label: str) -> str:
    """Named points, x from 0 on; those that are best are joined: nothing is better than one of them in both directions."""
    if not points:
        return ""
    x_axis = Axis([p.x for p in points], LEFT, WIDTH - RIGHT, log=False, from_zero=True)
    y_axis = Axis([p.y for p in points], HEIGHT - BOTTOM, TOP, log=False, padding=0.1)
    best = sorted((p for p in points if p.is_best), key=lambda p: p.x)
    path = " ".join(f"{x_axis(p.x):.1f},{y_axis(p.y):.1f}" for p in best)
    parts = [f'<polyline points="{path}" fill="none" stroke="{COLOURS[2]}" stroke-dasharray="4 3"/>']
    for p in points:
        x, y, colour = x_axis(p.x), y_axis(p.y), COLOURS[2] if p.is_best else "#888"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"><title>{escape(p.name)}</title></circle>'
        )
    parts += beside([(x_axis(p.x), y_axis(p.y), p.name) for p in points])
    return frame(parts, x_axis, y_axis, title, x_label, y_label)


def colours(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def end_labels(names: list[tuple[float, str, str]]) -> list[str]:
    """Names at the right, moved apart where lines end close together."""
    parts, floor = [], TOP - LINE_HEIGHT
    for y, name, colour in sorted(names):
        floor = max(y, floor + LINE_HEIGHT)
        parts.append(
            f'<text x="{WIDTH - RIGHT + 6}" y="{floor + 4:.1f}" fill="{colour}" {SMALL}>{escape(name)}</text>'
        )
    return parts


def beside(labels: list[tuple[float, float, str]]) -> list[str]:
    """Names beside points: to the right where there is room, moved down where they would cover one another."""
    parts, taken = [], []
    for x, y, name in sorted(labels, key=lambda label: label[1]):
        anchor, at = ("start", x + 7) if x + 7 + 6 * len(name) < WIDTH else ("end", x - 7)
        while any(abs(y - other) < LINE_HEIGHT for other in taken):
            y += LINE_HEIGHT / 2
        taken.append(y)
        parts.append(
            f'<text x="{at:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}" fill="currentColor" {SMALL}>{escape(name)}</text>'
        )
    return parts


SMALL = 'font-size="11"'


def frame(parts: list[str], x_axis: Axis, y_axis: Axis, title: str, x_label: str, y_label: str) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    ticks = []
    for value in x_axis.ticks():
        x = x_axis(value)
        ticks.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}" stroke="currentColor"/>')
        ticks.append(
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="currentColor" {SMALL}>{short(value)}</text>'
        )
    for value in y_axis.ticks():
        y = y_axis(value)
        ticks.append(
            f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity="0.15"/>'
        )
        ticks.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="currentColor" {SMALL}>{short(value)}</text>'
        )
    ticks.append(f'<line x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="currentColor"/>')
    middle = (TOP + bottom) / 2
    said = (
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle" fill="currentColor" {SMALL}>'
        f"{escape(x_label)}</text>"
        f'<text transform="translate(12 {middle}) rotate(-90)" text-anchor="middle" fill="currentColor" {SMALL}>'
        f"{escape(y_label)}</text>"
    )
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(ticks)}{said}{"".join(parts)}</svg></figure>'
    )
