"""Charts as inline SVG: they follow the page's colours, in the dark too, and ask nobody for a script or a font."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 350, 250
LEFT, RIGHT, TOP, BOTTOM = 54, 80, 12, 40  # margins; names of lines stand in the right one
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
    """Named points, x from 0 on; those that are best are coloured and joined."""
    if not points:
        return ""
    x_axis = Axis([p.x for p in points], LEFT, WIDTH - RIGHT, log=False, from_zero=True)
    y_axis = Axis([p.y for p in points], HEIGHT - BOTTOM, TOP, log=False, padding=0.1)
    best = sorted((p for p in points if p.is_best), key=lambda p: p.x)
    path = " ".join(f"{x_axis(p.x):.1f},{y_axis(p.y):.1f}" for p in best)
    parts = [f'<polyline points="{path}" fill="none" stroke="{COLOURS[2]}" stroke-dasharray="4 3"/>']
    for p in points:
        x, y, colour = x_axis(p.x), y_axis(p.y), COLOURS[2] if p.is_best else "#888"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>')
    parts += beside([(x_axis(p.x), y_axis(p.y), p.name) for p in points])
    return frame(parts, x_axis, y_axis, title, x_label, y_label)


def colours(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def end_labels(names: list[tuple[float, str, str]]) -> list[str]:
    """Names at the right, moved apart where lines end close together."""
    parts, floor = [], TOP - LINE_HEIGHT
    for y, name, colour in sorted(names):
        floor = max(y, floor + LINE_HEIGHT)
        parts.append(words(WIDTH - RIGHT + 6, floor + 4, name, "start", colour))
    return parts


def beside(labels: list[tuple[float, float, str]]) -> list[str]:
    """Names beside points: to the right where there is room, moved down where they would cover one another."""
    parts, taken = [], []
    for x, y, name in sorted(labels, key=lambda label: label[1]):
        anchor, at = ("start", x + 7) if x + 7 + 6 * len(name) < WIDTH else ("end", x - 7)
        while any(abs(y - other) < LINE_HEIGHT for other in taken):
            y += LINE_HEIGHT / 2
        taken.append(y)
        parts.append(words(at, y + 4, name, anchor))
    return parts


def words(x: float, y: float, text: str, anchor: str = "middle", fill: str = "currentColor", more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{fill}" font-size="12" {more}>{escape(text)}</text>'


def line(x1: float, x2: float, y1: float, y2: float, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="currentColor" {more}/>'


def frame(parts: list[str], x_axis: Axis, y_axis: Axis, title: str, x_label: str, y_label: str) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    ticks = [line(LEFT, right, bottom, bottom)]
    for value in x_axis.ticks():
        x = x_axis(value)
        ticks += [line(x, x, bottom, bottom + 4), words(x, bottom + 16, short(value))]
    for value in y_axis.ticks():
        y = y_axis(value)
        ticks += [line(LEFT, right, y, y, 'opacity="0.15"'), words(LEFT - 6, y + 4, short(value), "end")]
    middle = (TOP + bottom) / 2
    said = words((LEFT + right) / 2, HEIGHT - 6, x_label)
    said += words(12, middle, y_label, more=f'transform="rotate(-90 12 {middle})"')
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(ticks)}{said}{"".join(parts)}</svg></figure>'
    )
