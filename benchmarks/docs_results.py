"""What training reached and what it took, as Markdown: from the model cards and from the energy report."""

from pathlib import Path

from huggingface_hub import ModelCard

from benchmarks.docs_tables import DOCS, read
from benchmarks.record import ROOT
from benchmarks.tables import markdown_table
from hf_efficient.training.arguments import LOWER_IS_BETTER

CARDS = ROOT / "model_cards"
ENERGY = "results/energy/report.json"
RECIPES = "results/recipes"
CONVERTED = "results/attention/converted_attention.json"
# What is shown of a comparison beside the metric that decides.
BESIDE = {"test_map": "mAP", "test_map_50": "mAP at 0.5", "test_iou": "IoU", "test_pixel_accuracy": "pixels"}


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


def comparisons(docs: Path = DOCS) -> str:
    """Runs of equal budgets, a table for each file: `hf-efficient compare` wrote them."""
    files = sorted((docs / RECIPES).glob("*.json"))
    return "\n\n".join(comparison(docs, file) for file in files if has_scores(read(docs, file.relative_to(docs))))


def has_scores(record: dict) -> bool:
    """Whether anything was trained yet: a record begins with the rehearsal."""
    return any(arm["scores"] for arm in record["arms"].values())


def comparison(docs: Path, file: Path) -> str:
    name = file.relative_to(docs).as_posix()
    record = read(docs, name)
    first, percent = next(iter(record["arms"])), not record["metric"].endswith(LOWER_IS_BETTER)
    factor, form = (100, ".1f") if percent else (1, ".3f")
    metric = record["metric"].removeprefix("test_").replace("_", " ") + (", %" if percent else "")
    others = [name for name in BESIDE if name != record["metric"]]
    rows, beside = [], [name for name in others if any(mean_of(arm, name) for arm in record["arms"].values())]
    for arm, found in ((arm, found) for arm, found in record["arms"].items() if found["scores"]):
        scores = " ".join(f"{factor * score:{form}}" for score in found["scores"].values())
        pair, joules = difference(record["differences"], first, arm), found["joules"]
        cells = [f"`{arm}`", f"{factor * found['summary']['centre']:{form}}", scores]
        cells += [mean_of(found, name) for name in beside]
        cells += ["" if pair is None else over(pair, factor, form), f"{found['steps']:,}"]
        rows.append([*cells, f"{found['seconds']:.0f}", "?" if joules is None else f"{joules:,.0f}"])
    beside = [f"{BESIDE[name]}, %" for name in beside]
    header = ["run", metric, "each seed", *beside, f"over `{first}`", "steps", "s", "J"]
    commands = "\n".join(record["commands"])
    note = f"<details><summary>The commands, as they were run</summary>\n\n```\n{commands}\n```\n\n</details>"
    title, curves = file.stem.replace("_", " "), file.with_suffix(".png")
    picture = f"![Validation over time]({curves.relative_to(docs).as_posix()})\n\n" if curves.is_file() else ""
    table = f"{markdown_table(header, rows)}\n\n[All figures]({name})."
    return f"### {title}, {record['budget']}\n\n{table}\n\n{picture}{note}"


def mean_of(arm: dict, metric: str) -> str:
    """Over the seeds, in per cent; "" where it was not measured."""
    found = [metrics[metric] for metrics in arm.get("metrics", {}).values() if metric in metrics]
    return f"{100 * sum(found) / len(found):.1f}" if found else ""


def over(pair: dict, factor: float, form: str) -> str:
    shown = f"{factor * pair['effect']:+{form}}"
    if pair["p"] is None:
        return shown
    return f"{shown} [{factor * pair['low']:+{form}}, {factor * pair['high']:+{form}}], p = {pair['adjusted']:.2g}"


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


def converted_attention(docs: Path = DOCS) -> str:
    """A pretrained encoder with other attention, fine-tuned: `scripts/compare_converted_attention.py` wrote it."""
    record, rows = read(docs, CONVERTED), []
    for run in record["runs"].values():
        errors = run.get("errors_distilled") or run.get("errors_converted")
        distilled = f"{run['distil_steps']} steps, {run['distil_cpu_seconds']:.0f} s" if run["distil_steps"] else "–"
        cells = [f"`{run['attention']}`", distilled, f"{sum(errors) / len(errors):.2f}" if errors else "–"]
        rows.append([*cells, f"{100 * run['accuracy']:.1f}", f"{run['finetuning_cpu_seconds']:.0f}"])
    header = ["attention", "distilled", "error of the layers, mean", "accuracy, %", "fine-tuning, s"]
    first, cases = next(iter(record["runs"].values())), record["validation_examples"]
    error = 100 * (first["accuracy"] * (1 - first["accuracy"]) / cases) ** 0.5
    note = (
        f"{record['model']}, fine-tuned once on {first['examples']:,} phrases (batch {first['batch_size']}, AdamW "
        f"{first['learning_rate']:g}, linear decay, at most {first['max_length']} tokens), seed {first['seed']}; "
        f"accuracy on the {cases} of the validation split, standard error {error:.1f}. Errors are relative, before "
        f"fine-tuning, on phrases that were not distilled on. CPU seconds of {record['threads']} thread. "
        f"`{record['command']}`. [All figures]({CONVERTED})."
    )
    return f"{markdown_table(header, rows)}\n\n{note}"


def difference(pairs: list[dict], first: str, name: str) -> dict | None:
    return next((pair for pair in pairs if (pair["a"], pair["b"]) == (first, name)), None)


def interval(record: dict, centre: str, form: str) -> str:
    return f"{record[centre]:{form}} [{record['low']:{form}}, {record['high']:{form}}]"
