"""Results as HTML: bars, tables, pictures with captions. Whatever comes from a model or a visitor is escaped."""

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from PIL import Image


class Bar(NamedTuple):
    name: str
    share: float  # of the full width, 0 to 1
    text: str  # what is written beside it


def bars(rows: Sequence[Bar], label: str) -> str:
    """Horizontal bars, each with its name and its number in words."""
    lines = [
        f'<div class="bar" role="listitem"><span class="bar-name">{escape(row.name)}</span>'
        f'<span class="bar-room" aria-hidden="true"><span class="bar-fill" style="width:{clamp(row.share):.1%}">'
        f'</span></span><span class="bar-text">{escape(row.text)}</span></div>'
        for row in rows
    ]
    return f'<div class="bars" role="list" aria-label="{escape(label)}">{"".join(lines)}</div>'


def clamp(share: float) -> float:
    return min(1.0, max(0.0, share))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """The first cell of a row is its name."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<div class="wide"><table class="facts"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figures(pictures: Sequence[tuple[str, Image.Image]]) -> str:
    """Pictures beside one another, as many as there is room for."""
    shown = "".join(
        f'<figure><img src="{data_uri(image)}" alt="{escape(caption)}" width="{image.width}" height="{image.height}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for caption, image in pictures
    )
    return f'<div class="figures">{shown}</div>'


def data_uri(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"
