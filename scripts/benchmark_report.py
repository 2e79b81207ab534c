"""How the benchmark's results are shown: tables, the README's table of mechanisms, and the plot."""

import json
import re
from pathlib import Path

import matplotlib
from contenders import MODULE, SDPA
from measure import (
    FORWARD,
    TRAINING,
    Ratio,
    crossover,
    describe_crossover,
    describe_environment,
    markdown_table,
    text_table,
)
from targets import Figure

from hf_efficient.attention import get_attention, list_attentions

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DIRECTIONS = ("bidirectional", "causal")


def write(results: dict, figures: list[Figure], output: Path) -> None:
    """Prints the tables and writes the files."""
    heading = describe_environment(results["environment"])
    sections = []
    for direction in DIRECTIONS:
        for name in (FORWARD, TRAINING):
            if table := speed_table(results, direction, name):
                title = f"{direction}, {name}: speed against SDPA († against softmax attention with projections)"
                sections.append((title, text_table(*table)))
    if results["memory"]:
        sections.append(("peak memory, MB", text_table(*memory_table(results))))
    if results["left_out"]:
        sections.append(("left out", text_table(["contender", "where", "why"], left_out_rows(results), "<<<")))
    if figures:
        sections.append(("targets, forward+backward", text_table(*target_table(figures), "<<>><<")))
    print(heading, *(f"\n{title}\n{table}" for title, table in sections), sep="\n")

    name = "benchmark" if results["rows"] else "targets"
    files = [output / f"{name}.json", output / f"{name}.md"]
    files[0].write_text(json.dumps(results, indent=1) + "\n")
    paragraphs = [mechanism_table(results)] * bool(results["rows"])
    paragraphs += [markdown_table(*target_table(figures))] * bool(figures)
    files[1].write_text("\n\n".join([*paragraphs, f"Forward+backward, on {heading}."]) + "\n")
    if results["rows"]:
        files.append(output / "benchmark.png")
        draw(results, files[-1])
    print(f"\nWritten: {', '.join(map(str, files))}")


def target_table(figures: list[Figure]) -> tuple[list, list]:
    return ["what", "of", "measured", "target", "", ""], [[figure.group, *figure.cells()] for figure in figures]


def curves(results: dict, direction: str, name: str) -> dict[str, dict[int, dict]]:
    """contender -> length -> row, of one direction and pass"""
    found = {}
    for row in results["rows"]:
        if row["direction"] == direction and row["pass"] == name:
            found.setdefault(row["contender"], {})[row["length"]] = row
    return found


def marked(row: dict) -> str:
    return row["contender"] + ("†" if row["against"] == MODULE else "")


def speed_table(results: dict, direction: str, name: str) -> tuple[list, list] | None:
    found = curves(results, direction, name)
    lengths = sorted({length for rows in found.values() for length in rows})
    if not lengths:
        return None
    header = ["", *(f"N={length}" for length in lengths), "ahead from", f"ms at {lengths[-1]}"]
    table = []
    for rows in found.values():
        cells = [str(Ratio(**rows[length]["speedup"])) if length in rows else "–" for length in lengths]
        last = rows.get(lengths[-1])
        milliseconds = f"{1e3 * sorted(last['seconds'])[len(last['seconds']) // 2]:.1f}" if last else "–"
        first = next(iter(rows.values()))
        ahead = "" if first["contender"] in (first["against"], "softmax") else crossover_of(rows)
        table.append([marked(first), *cells, ahead, milliseconds])
    return header, table


def crossover_of(rows: dict[int, dict]) -> str:
    lengths = sorted(rows)
    return describe_crossover(lengths, [rows[length]["speedup"]["median"] for length in lengths])


def memory_table(results: dict) -> tuple[list, list]:
    columns = sorted({(row["direction"], row["length"]) for row in results["memory"]})
    cells = {}
    for row in results["memory"]:
        shown = "–"
        if "bytes" in row:
            shown = " / ".join(f"{row['bytes'][name] / 1e6:.0f}" for name in (FORWARD, TRAINING))
        cells.setdefault(row["contender"], {})[row["direction"], row["length"]] = shown
    header = ["forward / forward+backward", *(f"{direction}, N={length}" for direction, length in columns)]
    return header, [[name, *(row.get(column, "–") for column in columns)] for name, row in cells.items()]


def left_out_rows(results: dict) -> list[list[str]]:
    return [
        [row["contender"], f"{row['direction']}, N={row['length']}" if "length" in row else "", row["reason"]]
        for row in results["left_out"]
    ]


def mechanism_table(results: dict) -> str:
    """The table for the README: what each mechanism can do, and from which length on it is faster than SDPA."""
    directions = [direction for direction in DIRECTIONS if curves(results, direction, TRAINING)]
    header = ["mechanism", "paper", "cost", "causal", "recurrent", "key mask"]
    header += [f"faster than SDPA from N ({direction})" for direction in directions]
    found = {direction: curves(results, direction, TRAINING) for direction in directions}
    rows = []
    for name in list_attentions():
        if any(name in curve for curve in found.values()):
            cls = get_attention(name)
            can = [cls.supports_causal, cls.supports_recurrent, cls.supports_key_mask]
            rows.append([f"`{name}`{'' if cls.per_head else ' †'}", cls.paper, f"O({cls.cost})"])
            rows[-1] += ["yes" if able else "–" for able in can]
            for curve in found.values():
                known = name in curve and name != "softmax"  # which is SDPA
                rows[-1].append(crossover_of(curve[name]) if known else "–")
    footnote = "† works on hidden states: compared, with its projections, with softmax attention with its own."
    return f"{markdown_table(header, rows)}\n\n{footnote}"


def draw(results: dict, file: Path) -> None:
    """Speed-up against length, forward+backward, one panel per direction; fastest first in the legend."""
    panels = {direction: found for direction in DIRECTIONS if (found := curves(results, direction, TRAINING))}
    figure, axes = plt.subplots(1, len(panels), figsize=(8 * len(panels), 6.5), squeeze=False, sharey=True)
    for axis, (direction, found) in zip(axes[0], panels.items(), strict=True):
        axis.axhline(1, color="black", linewidth=1.2)
        shown = {name: rows for name, rows in found.items() if name not in (SDPA, MODULE, "softmax")}
        for rows in sorted(shown.values(), key=lambda rows: -rows[max(rows)]["speedup"]["median"]):
            plot_curve(axis, rows)
        lengths = sorted({length for rows in found.values() for length in rows})
        axis.set(xscale="log", yscale="log", xlabel="sequence length N", title=direction)
        axis.set_xticks(lengths, [str(length) for length in lengths])
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda y, _: f"{y:g}×")
        axis.grid(alpha=0.3)
        axis.legend(title="fastest first; ● faster from N on", fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
    axes[0][0].set_ylabel("speed against SDPA, forward+backward")
    machine = describe_environment(results["environment"]).split(", commit")[0]
    figure.suptitle(f"1× is SDPA (†: softmax attention with projections); dashed: peers. {machine}", fontsize=9)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def plot_curve(axis, rows: dict[int, dict]) -> None:
    """One contender's curve, and a dot where it overtakes; a peer's has the colour of the mechanism it implements."""
    names, row = list_attentions(), next(iter(rows.values()))
    name = row["contender"]
    kin = names.index(re.match(r"\w+", name)[0])
    speedups = [row["speedup"]["median"] for row in rows.values()]
    at = crossover(list(rows), speedups)
    inside = min(rows) < at < max(rows)
    label = f"{marked(row)}  ● {describe_crossover(list(rows), speedups)}" if inside else marked(row)
    colour, marker = plt.get_cmap("tab20")(kin % 20), "osD^v<>pPX*h"[kin % 12]
    dashes = {"m=256": ":", "module": "-."}.get(name.split()[-1], "--")
    style = {"linestyle": "-", "marker": marker, "markersize": 5} if name in names else {"linestyle": dashes}
    axis.plot(list(rows), speedups, label=label, color=colour, linewidth=1.4, **style)
    if inside:
        axis.plot(at, 1, "o", color=colour, markersize=9, markeredgecolor="black")
