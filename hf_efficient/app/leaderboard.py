"""What was published of trained models: rows of `leaderboard.json`, which `make docs` writes.

A row is a dictionary: data, name, metric, value, joules, seconds, and whatever else is known, such as parameters,
seeds and command. What a row does not say stays empty.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from .charts import Point

FILE = Path(__file__).with_name("leaderboard.json")
LOWER_IS_BETTER = ("bits", "loss", "perplexity", "error")
NOISE = 0.02  # of joules, which are estimated: less is no difference
COLUMNS = {
    "name": "model",
    "value": "score",
    "joules": "joules (est.)",
    "seconds": "seconds",
    "parameters": "parameters",
    "seeds": "seeds",
    "command": "command",
}


def read(file: Path = FILE) -> list[dict]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []


def boards(rows: Sequence[dict]) -> list[str]:
    """What can be compared: the same data, metric and budget."""
    return list(dict.fromkeys(board_of(row) for row in rows))


def board_of(row: dict) -> str:
    said = f"{row.get('data', 'unknown data')}: {row['metric'].replace('_', ' ')}"
    return f"{said}, {row['budget']}" if row.get("budget") else said


def of_board(rows: Sequence[dict], board: str) -> list[dict]:
    """The best score first."""
    chosen = [row for row in rows if board_of(row) == board]
    return sorted(chosen, key=lambda row: row["value"], reverse=bool(chosen) and not lower_is_better(chosen[0]))


def columns(rows: Sequence[dict]) -> dict[str, str]:
    """Title -> key, of what any of them says."""
    return {title: key for key, title in COLUMNS.items() if any(row.get(key) is not None for row in rows)}


def sorted_by(rows: Sequence[dict], key: str, downwards: bool) -> list[dict]:
    """Rows that don't say come last."""
    known = [row for row in rows if row.get(key) is not None]
    known.sort(key=lambda row: row[key], reverse=downwards)
    return known + [row for row in rows if row.get(key) is None]


def lower_is_better(row: dict) -> bool:
    return any(word in row["metric"] for word in LOWER_IS_BETTER)


def cells(rows: Sequence[dict]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table."""
    used = columns(rows)
    return list(used), [[cell(row.get(key)) for key in used.values()] for row in rows]


def cell(value) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 100 else f"{value:,.0f}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def points(rows: Sequence[dict]) -> list[Point]:
    """Score against joules; best are those that no other beats in both."""
    known = [row for row in rows if row.get("joules")]
    return [Point(row["name"], row["joules"], row["value"], is_best(row, known)) for row in known]


def is_best(row: dict, others: Sequence[dict]) -> bool:
    """Whether no other has a better score for as little energy, or the same score for less."""
    sign = -1 if lower_is_better(row) else 1
    better = (other for other in others if sign * other["value"] > sign * row["value"])
    equal = (other for other in others if other["value"] == row["value"])
    return not any(other["joules"] <= row["joules"] * (1 + NOISE) for other in better) and not any(
        other["joules"] < row["joules"] * (1 - NOISE) for other in equal
    )
