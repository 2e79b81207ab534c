"""Tables in plain text, for what commands print."""

from collections.abc import Mapping, Sequence


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Cells under one another, to the left; the first row may be a header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def facts(values: Mapping[str, str]) -> str:
    """A line for each: its name, then what it is."""
    return columns(list(values.items()))
