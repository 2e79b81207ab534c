"""The tables of docs/benchmarks.md, as Markdown, from the JSON files in docs/results. `make docs` puts them there.

Each function returns its tables, and below each the command that makes it and what its run says of itself. Links are
relative to docs/.
"""

import json
from pathlib import Path

from benchmarks.floors import Figure
from benchmarks.processes import HEADER as PROCESSES_HEADER
from benchmarks.processes import rows as processes_rows
from benchmarks.record import ROOT, describe_run
from benchmarks.reports import DIRECTIONS, figure_table, memory_table, speed_table
from benchmarks.tables import markdown_table
from benchmarks.workloads import TRAINING

DOCS = ROOT / "docs"

# What made each file, for those that were written before a run recorded its command.
COMMANDS = {
    "results/attention/targets.json": "python -m benchmarks.attention --targets",
    "results/attention/benchmark.json": "python -m benchmarks.attention",
    "results/models/models.json": (
        "python -m benchmarks.models --families mobilevit_v2 hugginggreen_vit kerformer_vit --rounds 5"
    ),
    "results/models/mobilevit_v2_default_allocator.json": (
        "python -m benchmarks.models --families mobilevit_v2 --rounds 5 --default-allocator"
    ),
    "results/models/compressive_performer.json": (
        "python -m benchmarks.models --families compressive_performer --rounds 5"
    ),
    "results/training/training.json": "python -m benchmarks.training --rounds 7",
}


# Files whose figures have targets.
FLOORS = [*(name for name in COMMANDS if name != "results/attention/benchmark.json"), "results/data/data.json"]
MARK = "† works on hidden states: compared, with its projections, with softmax attention with its own."


def missed_floors(docs: Path = DOCS) -> str:
    """Every figure that misses its target, of all files."""
    rows = []
    for name in FLOORS:
        missed = (figure for figure in read_figures(docs, name) if figure.verdict == "FAIL")
        rows += [[*figure.cells()[:4], f"[{Path(name).stem}]({name})"] for figure in missed]
    return markdown_table(["what", "of", "measured", "target", "file"], rows) if rows else "None."


def attention_floors(docs: Path = DOCS) -> str:
    """The attention's figures that have a target, forward+backward."""
    return published_figures(docs, "results/attention/targets.json")


def attention_benchmark(docs: Path = DOCS) -> str:
    """Speed by length, from which length on each contender is ahead, and peak memory."""
    name = "results/attention/benchmark.json"
    results, parts = read(docs, name), []
    for direction in DIRECTIONS:
        if table := speed_table(results, direction, TRAINING):
            parts += [
                f"Speed against SDPA, {direction}, {TRAINING}: median [quartiles]. {MARK}",
                markdown_table(*table),
            ]
    if results["memory"]:
        parts += ["Peak memory in MB.", markdown_table(*memory_table(results))]
    return "\n\n".join([*parts, source(name, results["environment"])])


def model_speeds(docs: Path = DOCS) -> str:
    """The vision models against transformers' own; MobileViTv2 first with glibc's allocator as it is."""
    names = ("results/models/mobilevit_v2_default_allocator.json", "results/models/models.json")
    return "\n\n".join(published_figures(docs, name) for name in names)


def language_model_speeds(docs: Path = DOCS) -> str:
    """The language model against GPT-2 and the peers."""
    return published_figures(docs, "results/models/compressive_performer.json")


def training_speed(docs: Path = DOCS) -> str:
    """What the training script adds to a bare loop."""
    return published_figures(docs, "results/training/training.json")


def data_speed(docs: Path = DOCS) -> str:
    """What images that are decoded on demand add to a step."""
    return published_figures(docs, "results/data/data.json")


def text_speeds(docs: Path = DOCS) -> str:
    """Classifiers of texts against transformers' BERT, by length."""
    from benchmarks.text import markdown  # only where it is drawn: it imports the models

    name = "results/text/text.json"
    results = read(docs, name)
    size = f"{results['layers']} layers, batch {results['batch']}."
    return f"{size}\n\n{markdown(results)}\n\n{source(name, results['environment'])}"


def processes(docs: Path = DOCS) -> str:
    """Two processes against one."""
    name = "results/training/processes.json"
    found = read(docs, name)
    table = markdown_table(PROCESSES_HEADER, processes_rows(found))
    return f"Over one process with the same batch: {found['what']}.\n\n{table}\n\n{source(name, found['environment'])}"


def published_figures(docs: Path, name: str) -> str:
    return (
        f"{markdown_table(*figure_table(read_figures(docs, name)))}\n\n{source(name, read(docs, name)['environment'])}"
    )


def read_figures(docs: Path, name: str) -> list[Figure]:
    """The figures in a JSON file, for those who want to quote one."""
    results = read(docs, name)
    return [Figure.from_record(record) for record in results.get("figures") or results["targets"]]


def read(docs: Path, name: str) -> dict:
    return json.loads((docs / name).read_text(encoding="utf-8"))


def source(name: str, run: dict) -> str:
    """How a table was made, on what, and where all its figures are."""
    made = f"`{run['command']}` made it" if "command" in run else f"`{COMMANDS[name]}` makes it again"
    return f"{made}. It ran on {describe_run(run)}. [All figures]({name})."
