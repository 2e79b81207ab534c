"""Training in stages, each on what the one before learned: HuggingGreen's research question 3 in one command.

    hf-efficient train tiny_imagenet_hugginggreen_vit_rq3_masked_small \\
        cifar10_hugginggreen_vit_rq3_contrastive_small cifar10_hugginggreen_vit_rq3_finetune_small

pre-trains on masked patches, contrasts classes, and trains a new head on the frozen rest. Without the second it is the
paper's other recipe, pre-training and fine-tuning alone. What follows the names (--seed 1 --country DEU) holds for all
stages; --output_dir is the folder of their folders. Stopped and started again by the same command, it goes on.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from ...tables import columns
from ..checkpoints import replace_file
from ..configs import find_config
from ..errors import RunError
from ..launch import shown
from . import TASKS, find_task, train

COLUMNS = ("stage", "steps", "seconds", "joules", "result")


def train_in_stages(configs: Sequence[str], overrides: Sequence[str] = ()) -> list[dict]:
    """The results of all stages; a table of them is written to stages.json."""
    files = [find_config(name) for name in configs]
    stems = [file.stem for file in files]
    if len(set(stems)) < len(stems):
        raise RunError(f"stages must have different names, got {', '.join(stems)}.")
    tasks = [find_task(str(file), list(TASKS)) for file in files]  # errors first, before hours of work
    overrides, folder = take_folder(overrides)
    found, before = [], None
    for number, (file, task) in enumerate(zip(files, tasks, strict=True), 1):
        print(f"\n{number}/{len(files)}: {file.stem}, {task}\n", flush=True)
        start = [] if before is None else ["--model.pretrained", str(before)]
        before = folder / file.stem
        found.append(train(str(file), [*start, *overrides, "--output_dir", str(before)]))
    rows = [row(results) for results in found]
    rows.append(("all", *(sum(row[i] or 0 for row in rows) for i in (1, 2, 3)), rows[-1][4]))
    print("\n" + table(rows), flush=True)
    replace_file(folder / "stages.json", json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=2))
    return found


def take_folder(overrides: Sequence[str]) -> tuple[list[str], Path]:
    """What is overridden in all stages, and the folder for all results."""
    words, kept, folder = list(overrides), [], Path("results")
    while words:
        word = words.pop(0)
        key, equals, value = word.partition("=")
        if key in ("--output_dir", "--training.output_dir"):
            if not equals and not words:
                raise RunError(f"{word} has no value.")
            folder = Path(value if equals else words.pop(0))
        else:
            kept.append(word)
    return kept, folder


def row(results: dict) -> tuple:
    kwh = results.get("energy", {}).get("kwh")
    scores = {name.removeprefix("eval_"): shown(x) for name, x in results["metrics"].items() if name != "epoch"}
    shown_scores = ", ".join(f"{name} {value}" for name, value in scores.items())
    return results["run"], results["steps"], results["train_seconds"], kwh and kwh * 3.6e6, shown_scores


def table(rows: list[tuple]) -> str:
    cells = [(name, f"{a}", f"{b:.0f}", "?" if c is None else f"{c:,.0f}", text) for name, a, b, c, text in rows]
    return columns([COLUMNS, *cells])
