"""Evaluate a model from a folder or repository on a dataset: image classifiers, object detectors, language models.

    python scripts/evaluate.py results/cifar10_hugginggreen_vit_small cifar10
    python scripts/evaluate.py results/pydocs_compressive_performer pydocs --split test --output scores.json

Images are those of the split for evaluation. What is found is printed as a table and written as JSON. A text must be
split as it was for training: --level and --preset are those of the run.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from train_image_classifier import score
from train_language_model import segment_length, whole
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForObjectDetection,
)

import hf_efficient
from hf_efficient.data.collators import take_batch
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.data.image_sets import ImageSet, load_images
from hf_efficient.data.text_streams import TextOptions, load_language_data
from hf_efficient.training.arguments import EfficientTrainingArguments
from hf_efficient.training.checkpoints import replace_file
from hf_efficient.training.detection_trainer import DetectionTrainer
from hf_efficient.training.errors import RunError
from hf_efficient.training.history import COSTS
from hf_efficient.training.launch import finite, shown
from hf_efficient.training.memory_trainer import MemoryTrainer
from hf_efficient.training.run import Run
from hf_efficient.training.trainer import EfficientTrainer

TASKS = {
    "image-classification": (("ForImageClassification",), AutoModelForImageClassification),
    "object-detection": (("ForObjectDetection",), AutoModelForObjectDetection),
    "text-generation": (("ForCausalLM", "LMHeadModel"), AutoModelForCausalLM),
}


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder that a training script wrote, or a repository")
    parser.add_argument("dataset", help="a name or path, as in `dataset:` of a run")
    parser.add_argument("--task", choices=TASKS, help="by default what the model was made for")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--limit", type=int, help="images, or bytes of text; by default all")
    parser.add_argument("--mosaic", action="store_true", help="of detection: four images in a square")
    parser.add_argument("--split", choices=["test", "validation"], default="test", help="of a text")
    parser.add_argument("--level", default="byte", help="of a text's tokens: byte, bpe or word")
    parser.add_argument("--preset", default="standard", help="how a text is cleaned and split: standard or paper")
    parser.add_argument("--trust_remote_code", action="store_true", help="run code that comes with a repository")
    parser.add_argument("--output", type=Path, help="the JSON file; by default evaluation.json in the model's folder")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> dict:
    arguments = parse_arguments(argv)
    try:
        task = arguments.task or task_of(arguments)
        model = load_model(arguments, task)
        with tempfile.TemporaryDirectory() as folder:
            training = EfficientTrainingArguments(
                output_dir=folder, per_device_eval_batch_size=arguments.batch_size, disable_tqdm=True
            )
            build = text_trainer if task == "text-generation" else image_trainer
            trainer = build(arguments, model, training)
            with torch.inference_mode():
                metrics = trainer.evaluate()
    except (OSError, ValueError) as error:
        raise RunError(str(error)) from error
    results = collect(arguments, task, trainer, metrics)
    if trainer.is_world_process_zero():
        replace_file(output := output_file(arguments), json.dumps(results, indent=2) + "\n")
        print(f"\n{table(results)}\n\nWritten to {output}", flush=True)
    return results


def task_of(arguments: argparse.Namespace) -> str:
    config = AutoConfig.from_pretrained(arguments.model, trust_remote_code=arguments.trust_remote_code)
    architectures = config.architectures or []
    for task, (endings, _) in TASKS.items():
        if any(name.endswith(endings) for name in architectures):
            return task
    raise RunError(
        f"{arguments.model} holds {', '.join(architectures) or 'no known architecture'}: give --task, one of "
        f"{', '.join(TASKS)}."
    )


def load_model(arguments: argparse.Namespace, task: str):
    model = TASKS[task][1].from_pretrained(arguments.model, trust_remote_code=arguments.trust_remote_code)
    return model.eval()


def image_trainer(arguments, model, training: EfficientTrainingArguments) -> EfficientTrainer:
    detects = type(model).__name__.endswith("ForObjectDetection")
    splits = load_images(arguments.dataset, evaluation_limit=arguments.limit, boxes=detects)
    images = with_labels_of(model, splits.evaluation)
    processor = AutoImageProcessor.from_pretrained(arguments.model, trust_remote_code=arguments.trust_remote_code)
    looks = {
        "mean": processor.image_mean if processor.do_normalize else 0.0,
        "std": processor.image_std if processor.do_normalize else 1.0,
        "image_size": (processor.size["height"], processor.size["width"]),
    }
    if detects:
        batches = ImageBatches(images, **looks, task="detection", mosaic=arguments.mosaic)
        return DetectionTrainer(model, training, data_collator=take_batch, eval_dataset=batches)
    batches = ImageBatches(images, **looks)
    return EfficientTrainer(model, training, data_collator=take_batch, eval_dataset=batches, compute_metrics=score)


def with_labels_of(model, images: ImageSet) -> ImageSet:
    """The images with labels numbered as the model's are."""
    known = [model.config.id2label[i] for i in range(model.config.num_labels)]
    if known == images.class_names:
        return images
    if missing := [name for name in images.class_names if name not in known]:
        raise RunError(f"the model does not know {len(missing)} of the dataset's classes, as {missing[0]!r}.")
    numbers = torch.tensor([known.index(name) for name in images.class_names])
    return ImageSet(images.pixels, numbers[images.labels], known, images.boxes, images.skipped)


def text_trainer(arguments, model, training: EfficientTrainingArguments) -> MemoryTrainer:
    options = TextOptions(
        name=arguments.dataset,
        level=arguments.level,
        preset=arguments.preset,
        limit=arguments.limit,
        tokenizer=arguments.model,
    )
    data = load_language_data(options)
    run = Run(name="evaluation", dataset={}, model={}, training=training)
    text = whole(getattr(data, arguments.split), segment_length(options, model), run)
    return MemoryTrainer(model, training, eval_dataset=text, processing_class=data.tokenizer)


def collect(arguments, task: str, trainer: EfficientTrainer, metrics: dict) -> dict:
    found = {name: value for name, value in metrics.items() if name != "epoch" and not COSTS.search(name)}
    scores = {name.removeprefix("eval_"): finite(value) for name, value in found.items()}
    return {
        "model": arguments.model,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "dataset": arguments.dataset,
        "task": task,
        "split": arguments.split if task == "text-generation" else "evaluation",
        "samples": len(trainer.eval_dataset),
        "metrics": scores,
        "seconds": metrics.get("eval_runtime"),
        "samples_per_second": metrics.get("eval_samples_per_second"),
        "versions": {"hf_efficient": hf_efficient.__version__, "torch": torch.__version__},
    }


def output_file(arguments: argparse.Namespace) -> Path:
    if arguments.output is not None:
        return arguments.output
    return Path(arguments.model if Path(arguments.model).is_dir() else ".") / "evaluation.json"


def table(results: dict) -> str:
    rows = {
        "model": f"{results['model']}, {results['parameters']:,} parameters",
        "dataset": f"{results['dataset']}, {results['samples']:,} {results['split']} samples",
        **{name: shown(value) for name, value in results["metrics"].items()},
        "samples per second": shown(results["samples_per_second"]),
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())
