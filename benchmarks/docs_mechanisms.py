"""The tables of docs/mechanisms.md, as Markdown: from the registry, and from what the attention benchmark measured."""

import inspect
import sys
from pathlib import Path

from benchmarks.docs_tables import DOCS, MARK, read, source
from benchmarks.reports import DIRECTIONS, crossover_of, curves
from benchmarks.tables import markdown_table
from benchmarks.workloads import TRAINING
from hf_efficient.attention import Attention, attention_options, get_attention, list_attentions

# Column: the flag that it shows.
CAN = {
    "causal": "supports_causal",
    "recurrent": "supports_recurrent",
    "cross": "supports_cross",
    "needs a grid": "needs_grid",
    "fixed length": "fixed_length",
    "parameter-free": "parameter_free",
}
BENCHMARK = "results/attention/benchmark.json"


def mechanisms(docs: Path = DOCS) -> str:
    """What each mechanism can do, and from which length on it is faster than SDPA."""
    results = read(docs, BENCHMARK)
    measured = [curves(results, direction, TRAINING) for direction in DIRECTIONS]
    header = ["mechanism", "paper", "cost", *CAN, *(f"ahead from N ({direction})" for direction in DIRECTIONS)]
    rows = []
    for name in list_attentions():
        cls = get_attention(name)
        row = [f"`{name}`{'' if cls.per_head else ' †'}", cls.paper, f"O({cls.cost})"]
        row += ["yes" if getattr(cls, flag) else "–" for flag in CAN.values()]
        for direction, curve in zip(DIRECTIONS, measured, strict=True):
            row.append(ahead_from(name, curve, direction == "causal"))
        rows.append(row)
    note = (
        "Ahead from N: the number of tokens from which on forward+backward is faster than PyTorch's softmax attention "
        f"(SDPA), 8 heads of 64. {MARK}"
    )
    return f"{markdown_table(header, rows)}\n\n{note} {source(BENCHMARK, results['environment'])}"


def ahead_from(name: str, curve: dict[str, dict], causal: bool) -> str:
    if name == "softmax" or (causal and not get_attention(name).supports_causal):  # softmax is SDPA
        return "–"
    return crossover_of(curve[name]) if name in curve else "not measured"


def mechanism_options() -> str:
    """What each mechanism is, in a line, and its own options with their defaults."""
    rows = []
    for name in list_attentions():
        options = own_options(name)
        shown = ", ".join(f"`{option}={default!r}`" for option, default in options.items()) or "–"
        rows.append([f"[`{name}`](../hf_efficient/attention/{name}.py)", summary(name), shown])
    return markdown_table(["mechanism", "what it is", "options"], rows)


def summary(name: str) -> str:
    """The first line of its file's docstring."""
    module = sys.modules[get_attention(name).__module__]
    return (module.__doc__ or "").strip().partition("\n")[0].replace("|", r"\|")


def own_options(name: str) -> dict[str, object]:
    """Without those that all mechanisms have."""
    common = inspect.signature(Attention.__init__).parameters
    return {option: default for option, default in attention_options(name).items() if option not in common}
