"""How results are shown: tables on the terminal, JSON and Markdown in the output folder."""

import json
from pathlib import Path

from benchmarks.floors import HEADER, Figure
from benchmarks.ours import MODULE
from benchmarks.record import describe_run
from benchmarks.tables import markdown_table, text_table
from benchmarks.timing import Ratio, crossover_text
from benchmarks.workloads import FORWARD, TRAINING
from hf_efficient.attention import get_attention, list_attentions

DIRECTIONS = ("bidirectional", "causal")


def write_figures(name: str, run: dict, figures: list[Figure], output: Path) -> None:
    """Prints the figures and writes them as <name>.json and <name>.md."""
    heading = describe_run(run)
    print(heading, "", text_table(*figure_table(figures), "<<>><<"), sep="\n")
    results = {"environment": run, "figures": [figure.record() for figure in figures]}
    write_files(name, results, f"{markdown_table(*figure_table(figures))}\n\nOn {heading}.", output)


def write_files(name: str, results: dict, markdown: str, output: Path, *others: Path) -> None:
    """Writes the results and their table, and says so; `others` were written before."""
    files = [output / f"{name}.json", output / f"{name}.md"]
    files[0].write_text(json.dumps(results, indent=1) + "\n")
    files[1].write_text(f"{markdown}\n")
    print(f"\nWritten: {', '.join(map(str, [*files, *others]))}")


def figure_table(figures: list[Figure]) -> tuple[list, list]:
    return HEADER, [figure.cells() for figure in figures]


def write_attention(results: dict, figures: list[Figure], output: Path) -> None:
    """Prints the tables of the attention benchmark and writes its files."""
    heading = describe_run(results["environment"])
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
        sections.append(("targets, forward+backward", text_table(*figure_table(figures), "<<>><<")))
    print(heading, *(f"\n{title}\n{table}" for title, table in sections), sep="\n")

    paragraphs, pictures = [], []
    if results["rows"]:
        from benchmarks.plots import draw_speedups  # only where something is drawn: matplotlib is slow to import

        paragraphs, pictures = [mechanism_table(results)], [output / "benchmark.png"]
        draw_speedups(results).save(pictures[0])
    paragraphs += [markdown_table(*figure_table(figures))] * bool(figures)
    markdown = "\n\n".join([*paragraphs, f"Forward+backward, on {heading}."])
    write_files("benchmark" if results["rows"] else "targets", results, markdown, output, *pictures)


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
    return crossover_text(lengths, [rows[length]["speedup"]["median"] for length in lengths])


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
    """What each mechanism can do, and from which length on it is faster than SDPA."""
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
