"""A model of each vision family trained on scikit-learn's digits, then used like any other from the Hub. make demo

For each: the Trainer for some hundred steps, accuracy on digits it has not seen, save_pretrained, and pipeline() on
the saved directory. Then the picture of the patches that HuggingGreenViT's heuristics keep.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from draw_pictures import kept_patches, load_images
from measure import text_table
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainingArguments, pipeline

import hf_efficient

VIT = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 192,
}
FAMILIES = {
    "KerformerViT": VIT,
    "HuggingGreenViT": {**VIT, "heuristic": "variance", "top_k": 12, "prob": 0.9},
    "MobileViTv2": {"image_size": 32, "width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1]},
}
LABELS = {"num_labels": 10, "id2label": {i: f"digit {i}" for i in range(10)}}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="of training, per model (default: 300)")
    parser.add_argument("--output", type=Path, default=Path("results/demo"), metavar="DIR")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    images = [Image.fromarray(np.uint8(image * 255 / 16)) for image in digits.images]
    train, test = train_test_split(range(len(images)), test_size=0.25, random_state=0, stratify=digits.target)
    rows = []
    for name, fields in FAMILIES.items():
        torch.manual_seed(0)
        model = build(name, **fields, **LABELS)
        processor = hf_efficient.image_processor_for(model.config)
        pixels = processor(images, return_tensors="pt")["pixel_values"]
        labels = torch.tensor(digits.target)
        start = time.perf_counter()
        fit(model, pixels[train], labels[train], arguments.steps)
        seconds = time.perf_counter() - start
        directory = arguments.output / name
        model.save_pretrained(directory)
        processor.save_pretrained(directory)
        accuracy = evaluate(model, pixels[test], labels[test])
        best = pipeline("image-classification", model=str(directory))(images[test[0]])[0]
        seen = f"{best['label']} ({best['score']:.2f}), it is {digits.target[test[0]]}"
        rows.append([name, f"{model.num_parameters():,}", f"{accuracy:.1%}", f"{seconds:.0f} s", seen])
    header = ["model", "parameters", f"accuracy, {len(test)} unseen digits", "training", "pipeline() on one of them"]
    print("\n" + text_table(header, rows, "<>>><"))
    file = arguments.output / "kept_patches.png"
    kept_patches(load_images([]), 16, 0.5).save(file)
    print(f"\nWritten: {', '.join(str(arguments.output / name) for name in FAMILIES)}, {file}")


def build(name: str, **fields) -> torch.nn.Module:
    config = getattr(hf_efficient, f"{name}Config")(**fields)
    return getattr(hf_efficient, f"{name}ForImageClassification")(config)


def fit(model: torch.nn.Module, pixels: torch.Tensor, labels: torch.Tensor, steps: int) -> None:
    options = TrainingArguments(
        output_dir="results/demo/trainer",
        max_steps=steps,
        per_device_train_batch_size=64,
        learning_rate=2e-3,
        warmup_steps=20,
        lr_scheduler_type="cosine",
        logging_steps=max(1, steps // 4),
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        seed=0,
    )
    Trainer(model, options, train_dataset=TensorDataset(pixels, labels), data_collator=collate).train()


def collate(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    pixels, labels = zip(*rows, strict=True)
    return {"pixel_values": torch.stack(pixels), "labels": torch.stack(labels)}


@torch.no_grad()
def evaluate(model: torch.nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> float:
    logits = torch.cat([model.eval()(batch).logits for batch in pixels.split(128)])
    return (logits.argmax(-1) == labels).float().mean().item()


if __name__ == "__main__":
    main()
