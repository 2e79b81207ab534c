"""The main job in a few minutes: train a vision model and a language model, see what it took, use both.

HuggingGreenViT on scikit-learn's digits and CompressivePerformer on the documentation that comes with Python, by the
same command as any other run; then a table of both, and what pipeline() makes of the results. No network.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline, set_seed
from transformers.utils.logging import disable_progress_bar

import hf_efficient  # noqa: F401  registers our models

from .. import visualization
from ..data.image_sets import load_images
from ..errors import CommandError
from ..layers.patch_selection import HEURISTICS
from ..tables import columns
from ..training.progress import quote

RUNS = ("digits_hugginggreen_vit", "pydocs_compressive_performer")
HEADER = ("run", "parameters", "accuracy", "micro-F1", "bits per byte", "training", "energy", "of which per item")
PROMPT = "The import statement"


def demonstrate(output: Path = Path("results/demo"), steps: int | None = None) -> None:
    """Trains both models anew, shows what came of it, and names the commands to go on with.

    Args:
        output: folder of their folders.
        steps: of training, for a shorter demonstration.
    """
    images, text = (train(name, output / name, steps) for name in RUNS)
    disable_progress_bar()  # of loading weights
    print("\n" + columns([HEADER, *(describe(name, output / name) for name in RUNS)]) + "\n")
    draw_kept_patches(images)
    unseen_digits(1)[0][1].resize((64, 64), Image.Resampling.NEAREST).save(digit := images / "digit.png")
    print(classify(images))
    print(continuation(text))
    print(f"\nLook at README.md, curves.png, results.json and energy.json (how the energy is known) in {images}")
    print(f"and {text}, and at {images / 'kept_patches.png'}. Then:\n")
    print(f"  hf-efficient predict {images} {digit}")
    print(f'  hf-efficient predict {text} "{PROMPT}"')
    print(f"  hf-efficient export {images} --to {images / 'model.onnx'}")
    print("  hf-efficient list configs")
    print(f"  hf-efficient app {images} {text}")


def train(name: str, folder: Path, steps: int | None) -> Path:
    """Trains in a process of its own, and shows what that says."""
    shutil.rmtree(folder, ignore_errors=True)
    words = ["train", name, "--output_dir", str(folder), *(["--max_steps", str(steps)] if steps else [])]
    print(f"\n$ hf-efficient {shlex.join(words)}\n", flush=True)
    command = [sys.executable, "-m", "hf_efficient", *words]
    done = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise CommandError(f"training {name} ended with exit code {done.returncode}.")
    return folder


def describe(name: str, folder: Path) -> tuple[str, ...]:
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
    return name, f"{results['parameters']:,}", *shown, f"{results['train_seconds']:.0f} s", spent, per_item


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
