"""The main job in a few minutes: train a vision model and a language model, see what it took, use both. make demo

HuggingGreenViT on scikit-learn's digits and CompressivePerformer on the documentation that comes with Python, by the
same scripts and files as any other run; then a table of both, and what pipeline() makes of the results. No network.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hf_efficient  # noqa: F401  (makes the models known to transformers)

# isort: split
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline, set_seed
from transformers.utils.logging import disable_progress_bar

from hf_efficient import visualization
from hf_efficient.data.image_sets import load_images
from hf_efficient.layers.patch_selection import HEURISTICS
from hf_efficient.training.progress import quote

ROOT = Path(__file__).parents[1]
RUNS = {
    "digits_hugginggreen_vit": "train_image_classifier.py",
    "pydocs_compressive_performer": "train_language_model.py",
}
HEADER = ["run", "parameters", "accuracy", "micro-F1", "bits per byte", "training", "energy", "of which per item"]
PROMPT = "The import statement"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, metavar="N", help="of training, for a shorter demonstration")
    parser.add_argument("--output", type=Path, default=Path("results/demo"), metavar="DIR")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    images, text = (train(name, arguments.output / name, arguments.steps) for name in RUNS)
    disable_progress_bar()  # of loading weights
    rows = [describe(name, arguments.output / name) for name in RUNS]
    print(f"\n{table(rows)}\n")
    draw_kept_patches(images)
    print(classify(images))
    print(continuation(text))
    print("\nMuch of the energy may be estimated: energy.json says how it is known.")
    print(f"{images}/kept_patches.png shows what each heuristic keeps of a digit.")


def train(name: str, folder: Path, steps: int | None) -> Path:
    """Runs the training script anew and shows what it says; ends here if it fails."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, f"scripts/{RUNS[name]}", f"configs/{name}.yaml", "--output_dir", str(folder.resolve())]
    command += ["--max_steps", str(steps)] if steps else []
    print(f"\n$ python {' '.join(command[1:])}\n", flush=True)
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        sys.exit(f"demo: {RUNS[name]} ended with exit code {done.returncode}.")
    return folder


def describe(name: str, folder: Path) -> list[str]:
    """A row of the table."""
    results = json.loads((folder / "results.json").read_text())
    metrics, energy = results["metrics"], results.get("energy", {})
    scores = [metrics.get("eval_accuracy"), metrics.get("eval_micro_f1"), metrics.get("test_bits_per_byte")]
    shown = ["–" if score is None else f"{score:.4f}" for score in scores]
    spent = "not measured" if energy.get("kwh") is None else f"{energy['kwh'] * 3.6e6:,.0f} J"
    per_item = next(
        (
            f"{value:.2g} J/{key.rpartition('_')[2]}"
            for key, value in energy.items()
            if "train_joules_per_" in key and value
        ),
        "–",
    )
    return [name, f"{results['parameters']:,}", *shown, f"{results['train_seconds']:.0f} s", spent, per_item]


def table(rows: list[list[str]]) -> str:
    """Below the header, in aligned columns"""
    widths = [max(map(len, column)) for column in zip(HEADER, *rows, strict=True)]
    lines = [HEADER, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines)


def unseen_digits(count: int) -> list[tuple[str, Image.Image]]:
    """Names and pictures of the first digits that training did not see."""
    digits = load_images("digits").evaluation
    return [
        (digits.class_names[digits.labels[i]], Image.fromarray(digits.pixels[i].permute(1, 2, 0).numpy()))
        for i in range(count)
    ]


@torch.no_grad()
def draw_kept_patches(folder: Path) -> None:
    """What the model looks at if it may only keep its top_k patches, by each heuristic"""
    processor = AutoImageProcessor.from_pretrained(folder)
    heuristics = [name for name in HEURISTICS if name != "none"]
    models = [
        AutoModelForImageClassification.from_pretrained(folder, heuristic=name, select_at_eval=True).eval()
        for name in heuristics
    ]
    config, rows = models[0].config, []
    side = config.image_size // config.patch_size
    for name, digit in unseen_digits(4):
        pixel_values = processor(digit, return_tensors="pt")["pixel_values"]
        picture = digit.resize((192, 192), Image.Resampling.NEAREST)
        kept = [model(pixel_values).patch_indices[0] for model in models]
        drawn = [visualization.draw_kept_patches(picture, patches, (side, side)) for patches in kept]
        rows.append((f"digit {name}", [picture, *drawn]))
    titles = [f"{config.num_kept_patches} of {config.num_patches} patches", *heuristics]
    visualization.contact_sheet(rows, titles).save(folder / "kept_patches.png")


def classify(folder: Path) -> str:
    model = pipeline("image-classification", str(folder))
    digits = unseen_digits(3)
    answers = [model(digit)[0] for _, digit in digits]
    seen = [
        f"{answer['label']} ({answer['score']:.2f}; it is {name})"
        for (name, _), answer in zip(digits, answers, strict=True)
    ]
    return f'pipeline("image-classification", "{folder}") of three unseen digits: {", ".join(seen)}'


def continuation(folder: Path) -> str:
    set_seed(0)
    model = pipeline("text-generation", str(folder))
    (found,) = model(PROMPT, max_new_tokens=160, do_sample=True, temperature=0.7)
    return f'pipeline("text-generation", "{folder}") goes on from "{PROMPT}":\n{quote(found["generated_text"])}'


if __name__ == "__main__":
    main()
