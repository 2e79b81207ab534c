"""Numbers and tables as text: aligned columns for a terminal, Markdown for a page."""

from collections.abc import Iterable, Sequence


def significant(x: float) -> str:
    """Three digits or so: 0.083, 1.92, 28.4, 113, 172,344."""
    return f"{x:,.{3 if abs(x) < 0.1 else 2 if abs(x) < 10 else 1 if abs(x) < 100 else 0}f}"


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str | None = None) -> str:
    """Aligned columns, "<" to the left and ">" to the right; by default the first to the left, the others right."""
    rows, align = [list(header), *(list(row) for row in rows)], align or "<" + ">" * (len(header) - 1)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    columns = list(zip(align, widths, strict=True))
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, (side, width) in zip(row, columns, strict=True)).rstrip()
        for row in rows
    )


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
