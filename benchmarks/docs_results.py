"""What training reached and what it took, as Markdown: from the model cards and from the energy report."""

from pathlib import Path

from huggingface_hub import ModelCard

from benchmarks.docs_tables import DOCS, read
from benchmarks.record import ROOT
from benchmarks.tables import markdown_table

CARDS = ROOT / "model_cards"
ENERGY = "results/energy/report.json"


def trained_models(cards: Path = CARDS) -> str:
    """What each run with a card reached, and the run that it is compared with."""
    files = [file for file in sorted(cards.glob("*.md")) if file.name != "template.md"]
    header = ["run", "data", "metric", "value", "parameters", "steps", "training, s", "energy, J"]
    return markdown_table(header, dict.fromkeys(row for file in files for row in run_rows(file)))


def run_rows(file: Path) -> list[tuple[str, ...]]:
    """Of the table "Compared with" in a card: this run, linked, and the others."""
    card = ModelCard.load(file)
    lines = card.text.partition("## Compared with")[2].partition("\n## ")[0].splitlines()
    header, _, *runs = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    metric, data, rows = header[4], card.data.eval_results[0].dataset_name, []
    for name, parameters, steps, seconds, value, joules in runs:
        shown = f"[`{name}`](../model_cards/{file.name})" if name == file.stem else f"`{name}`"
        value = value if metric == "bits per byte" else f"{100 * float(value):.1f} %"
        rows.append((shown, data, metric, value, parameters, steps, seconds, joules))
    return rows


def energy_comparison(docs: Path = DOCS) -> str:
    """Energy and accuracy of the runs that were repeated, and the differences from the first."""
    report = read(docs, ENERGY)
    first, rows = next(iter(report["energies"])), []
    for name, energy in report["energies"].items():
        seeds = [f"{100 * row['accuracy']:.1f}" for row in report["outcomes"] if row["variant"] == name]
        cells = [name, interval(energy, "centre", ",.0f"), " ".join(seeds)]
        ratio, points = (difference(report[kind], first, name) for kind in ("differences", "score_differences"))
        cells.append("" if ratio is None else f"{interval(ratio, 'effect', '.2f')}, p = {ratio['adjusted']:.2g}")
        cells.append("" if points is None else f"{interval(points, 'effect', '+.1f')}, p = {points['adjusted']:.2g}")
        rows.append(cells)
    header = ["run", "training energy, J", "accuracy of each seed, %", f"energy over {first}", f"points over {first}"]
    note = "Means with 95 % intervals; paired t tests, p with Holm's correction."
    return f"{markdown_table(header, rows)}\n\n{note} [All figures]({ENERGY})."


def difference(pairs: list[dict], first: str, name: str) -> dict | None:
    return next((pair for pair in pairs if (pair["a"], pair["b"]) == (first, name)), None)


def interval(record: dict, centre: str, form: str) -> str:
    return f"{record[centre]:{form}} [{record['low']:{form}}, {record['high']:{form}}]"
