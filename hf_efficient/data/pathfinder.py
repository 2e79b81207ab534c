"""Pathfinder (Linsley et al. 2018; Tay et al. 2020, "Long Range Arena"): does a dashed curve join the two markers?

A picture has two long curves and several short ones. Its markers stand at the ends of one long curve (label 1) or at
an end of each (label 0). Dashes of a curve are at most 2 pixels from one another, curves at least 3, counted along
rows or columns: so the label can be read off the picture by a flood fill that jumps over gaps.

A picture is a text, one character for each pixel, row by row: its grey level from "0", the background, over "8", a
dash, to "f", a marker. In the original all are equally bright. Picture i of a split is a function of seed, split and i
alone, and the same on every machine: directions are whole numbers, and of Python's generator only `random()` is used.
"""

import math
from functools import reduce
from operator import or_
from random import Random
from typing import NamedTuple

BACKGROUND, DASH, MARKER = "0", "8", "f"
ON, OFF = 2, 1  # pixels of a dash, and between two
GAP = 2  # farthest pixels that belong together: rows or columns apart
TURNS, UNIT = 64, 1024  # directions, and the length of each
DIRECTIONS = [
    (round(UNIT * math.sin(2 * math.pi * turn / TURNS)), round(UNIT * math.cos(2 * math.pi * turn / TURNS)))
    for turn in range(TURNS)
]
MOST_TURN = 5  # from one dash to the next
LEAST_DISTANCE = 6  # of two markers, by rows or columns
TURNS_TRIED = 8  # before a curve that would leave the picture, or come too near to another, steps back
TRIES = 60  # to place a curve, before the picture is begun anew


class Pathfinder:
    """
    Args:
        image_size: height and width.
        contour_length: dashes of a long curve; 6 in the arena's "baseline", 14 in "hard".
        distractors: short curves, of a third of the dashes; as many as find room. By default together they would have
            20 dashes.
        seed: of all pictures.
    """

    class_names = ["apart", "joined"]
    sizes = {"train": 160_000, "validation": 20_000, "test": 20_000}
    level = "byte"  # of the tokens

    def __init__(self, image_size: int = 32, contour_length: int = 6, distractors: int | None = None, seed: int = 0):
        if not 16 <= image_size <= 512:
            raise ValueError(f"image_size={image_size} must be between 16 and 512.")
        if not 4 <= contour_length <= (most := image_size**2 // 64):  # for more there is hardly room
            raise ValueError(
                f"contour_length={contour_length} must be between 4 and {most} with image_size={image_size}."
            )
        if distractors is not None and distractors < 0:
            raise ValueError(f"distractors={distractors} must not be negative.")
        self.size, self.length, self.seed = image_size, contour_length, seed
        self.short = max(1, contour_length // 3)
        self.distractors = 20 // self.short if distractors is None else distractors
        pixels = range(image_size**2)
        self.marker = [self.square(pixel, 1) for pixel in pixels]
        self.near = [sum(1 << other for other in self.square(pixel, GAP)) for pixel in pixels]  # sets, as bits

    def sample(self, split: str, index: int) -> tuple[str, int]:
        """A picture and its label."""
        random = Random(f"pathfinder {self.seed} {split} {index}").random
        label = int(2 * random())
        while True:
            if curves := self.draw(random):
                return self.picture(curves, label), label

    def draw(self, random) -> "list[Curve] | None":
        """All curves, the long ones first, or None if they found no room; labels have no say in it."""
        first = self.place(random, self.length, 0, with_markers=True)
        second = first and self.place(random, self.length, first.surroundings, with_markers=True)
        if second is None:
            return None
        ways = [(a, b) for a in (first, first.turned()) for b in (second, second.turned())]
        curves = list(min(ways, key=self.difference))
        if self.difference(curves) > self.short:  # it would tell the label
            return None
        taken = first.surroundings | second.surroundings  # where no further curve may come
        for _ in range(self.distractors):
            if curve := self.place(random, self.short, taken, with_markers=False):
                curves.append(curve)
                taken |= curve.surroundings
        return curves

    def difference(self, curves: "list[Curve]") -> int:
        """How much farther, or less far, the markers would be apart with the other label."""
        first, second = (curve.pixels for curve in curves)
        return abs(self.distance(first[0], first[-1]) - self.distance(first[0], second[0]))

    def place(self, random, dashes: int, taken: int, with_markers: bool) -> "Curve | None":
        """A curve outside of `taken`, with room for markers at its ends."""
        for _ in range(TRIES):
            pixels = self.walk(random, dashes, taken)
            if pixels is None:
                continue
            lit = pixels
            if with_markers:
                ends = pixels[0], pixels[-1]
                lit = [*lit, *(pixel for end in ends for pixel in self.marker[end])]
                inside = all(len(self.marker[end]) == 9 for end in ends)
                if not inside or self.distance(*ends) < LEAST_DISTANCE or any(taken >> pixel & 1 for pixel in lit):
                    continue
            return Curve(pixels, self.union(self.near, lit))
        return None

    def walk(self, random, dashes: int, taken: int) -> list[int] | None:
        """The pixels of a curve from end to end, found by stepping back where there is no way on, or None."""
        y, x = (int(self.size * random()) * UNIT + UNIT // 2 for _ in range(2))
        way = [Step(y, x, int(TURNS * random()), [], taken)]
        for attempt in range(1, TURNS_TRIED * dashes * 2):
            y, x, turn, last, taken = way[-1]
            turn += int((2 * MOST_TURN + 1) * random()) - MOST_TURN
            dy, dx = DIRECTIONS[turn % TURNS]
            dash = self.dash(y, x, dy, dx, taken)
            if len(dash) == ON:
                taken |= self.union(self.near, last)  # the dash before this one is out of bounds for the next
                way.append(Step(y + (ON + OFF) * dy, x + (ON + OFF) * dx, turn, dash, taken))
                if len(way) > dashes:
                    return [pixel for step in way for pixel in step.dash]
            elif attempt % TURNS_TRIED == 0:
                del way[max(1, len(way) - 3) :]
        return None

    def dash(self, y: int, x: int, dy: int, dx: int, taken: int) -> list[int]:
        """The pixels of a dash as far as it gets: to the border, or to where it must not come."""
        found, end = [], self.size * UNIT
        for _ in range(ON):
            if not (0 <= y < end and 0 <= x < end) or taken >> (pixel := y // UNIT * self.size + x // UNIT) & 1:
                break
            found.append(pixel)
            y, x = y + dy, x + dx
        return found

    def picture(self, curves: "list[Curve]", label: int) -> str:
        first, second = (curve.pixels for curve in curves[:2])
        levels = [BACKGROUND] * self.size**2
        for pixel in (pixel for curve in curves for pixel in curve.pixels):
            levels[pixel] = DASH
        for pixel in (pixel for end in (first[0], first[-1] if label else second[0]) for pixel in self.marker[end]):
            levels[pixel] = MARKER
        return "".join(levels)

    def distance(self, a: int, b: int) -> int:
        """Rows or columns between two pixels, whichever are more."""
        return max(abs(x - y) for x, y in zip(divmod(a, self.size), divmod(b, self.size), strict=True))

    def square(self, pixel: int, reach: int) -> list[int]:
        """The pixels at most so many rows and columns away."""
        row, column = divmod(pixel, self.size)
        rows, columns = (range(max(0, at - reach), min(self.size, at + reach + 1)) for at in (row, column))
        return [y * self.size + x for y in rows for x in columns]

    @staticmethod
    def union(sets: list[int], pixels: list[int]) -> int:
        return reduce(or_, (sets[pixel] for pixel in pixels), 0)


class Step(NamedTuple):
    """A dash of a curve that is being drawn, and where the next one begins."""

    y: int
    x: int
    turn: int
    dash: list[int]
    taken: int


class Curve(NamedTuple):
    pixels: list[int]  # of its dashes, from end to end
    surroundings: int  # a set of pixels, as bits: where other curves must not be

    def turned(self) -> "Curve":
        return Curve(self.pixels[::-1], self.surroundings)
