"""Train a model in stages, each on what the one before learned: HuggingGreen's research question 3 in one command.

    python scripts/train_in_stages.py configs/tiny_imagenet_hugginggreen_vit_rq3_masked_small.yaml \\
        configs/cifar10_hugginggreen_vit_rq3_contrastive_small.yaml \\
        configs/cifar10_hugginggreen_vit_rq3_finetune_small.yaml

pre-trains on masked patches, contrasts classes, and trains a new head on the frozen rest. Without the second file it
is the paper's other recipe, pre-training and fine-tuning alone. What follows the files (--seed 1 --country DEU) holds
for all stages; --output_dir is the folder of their folders. Stopped and started again by the same command, it goes on.
"""

import importlib
import json
import sys
from pathlib import Path

from hf_efficient.training.build_model import config_class
from hf_efficient.training.checkpoints import replace_file
from hf_efficient.training.errors import RunError
from hf_efficient.training.launch import script, shown
from hf_efficient.training.run import read_file

COLUMNS = ("stage", "steps", "seconds", "joules", "result")


def main(argv: list[str] | None = None) -> list[dict]:
    files, overrides, folder = parse(list(sys.argv[1:] if argv is None else argv))
    if not files or "--help" in overrides:
        print(__doc__)
        return []
    modules = [importlib.import_module(script_for(file)) for file in files]
    found, before = [], None
    for number, (file, module) in enumerate(zip(files, modules, strict=True), 1):
        output_dir = folder / Path(file).stem
        print(f"\n{number}/{len(files)}: {module.__name__}.py {file}\n", flush=True)
        start = [] if before is None else ["--model.pretrained", str(before)]
        found.append(module.main([file, *start, *overrides, "--output_dir", str(output_dir)]))
        before = output_dir
    rows = [row(results) for results in found]
    rows.append(("all", *(sum(row[i] or 0 for row in rows) for i in (1, 2, 3)), rows[-1][4]))
    print("\n" + table(rows), flush=True)
    replace_file(folder / "stages.json", json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=2))
    return found


def parse(words: list[str]) -> tuple[list[str], list[str], Path]:
    """The files, what is overridden in all of them, and the folder for all results."""
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    files, overrides, folder = words[:first], words[first:], Path("results")
    stems = [Path(file).stem for file in files]
    if len(set(stems)) < len(stems):
        raise RunError(f"stages must have different names, got {', '.join(stems)}.")
    kept = []
    while overrides:
        word = overrides.pop(0)
        key, equals, value = word.partition("=")
        if key in ("--output_dir", "--training.output_dir"):
            if not equals and not overrides:
                raise RunError(f"{word} has no value.")
            folder = Path(value if equals else overrides.pop(0))
        else:
            kept.append(word)
    return files, kept, folder


def script_for(file: str | Path) -> str:
    """Which of the training scripts a YAML file is for."""
    sections = read_file(str(file))
    if "objective" in sections.get("training", {}):
        return "pretrain_image_encoder"
    if "_detection" in Path(file).stem:
        return "train_object_detector"
    fields = config_class(sections.get("model", {})).__dataclass_fields__
    return "train_language_model" if "vocab_size" in fields else "train_image_classifier"


def row(results: dict) -> tuple:
    kwh = results.get("energy", {}).get("kwh")
    scores = {name.removeprefix("eval_"): shown(x) for name, x in results["metrics"].items() if name != "epoch"}
    shown_scores = ", ".join(f"{name} {value}" for name, value in scores.items())
    return results["run"], results["steps"], results["train_seconds"], kwh and kwh * 3.6e6, shown_scores


def table(rows: list[tuple]) -> str:
    cells = [COLUMNS]
    cells += [(name, f"{a}", f"{b:.0f}", "?" if c is None else f"{c:,.0f}", text) for name, a, b, c, text in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(4)]
    return "\n".join("  ".join([*(f"{x:<{w}}" for x, w in zip(c, widths, strict=False)), c[4]]) for c in cells)


if __name__ == "__main__":
    script(main)
