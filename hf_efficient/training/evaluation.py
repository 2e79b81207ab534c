"""How good a model is on a dataset: image classifiers, object detectors, language models.

Images are those of the split for evaluation. A text must be split as it was for training.
"""

import json
import tempfile
from pathlib import Path

import torch
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForObjectDetection,
)
from transformers.modeling_utils import PreTrainedModel

import hf_efficient

from ..data.collators import take_batch
from ..data.image_batches import ImageBatches
from ..data.image_sets import ImageSet, load_images
from ..data.text_streams import TextOptions, load_language_data
from ..errors import BAD_INPUT, UNLOADABLE, told
from ..inference import task_of
from ..tables import facts
from .arguments import EfficientTrainingArguments
from .checkpoints import replace_file
from .detection_trainer import DetectionTrainer
from .errors import RunError
from .history import COSTS
from .launch import finite, shown
from .memory_trainer import MemoryTrainer
from .tasks.image_classification import score
from .tasks.language_modelling import segment_length, whole
from .trainer import EfficientTrainer

AUTO_CLASSES = {
    "image-classification": AutoModelForImageClassification,
    "object-detection": AutoModelForObjectDetection,
    "text-generation": AutoModelForCausalLM,
}


def evaluate(
    model: str,
    dataset: str,
    *,
    task: str | None = None,
    batch_size: int = 64,
    limit: int | None = None,
    mosaic: bool = False,
    split: str = "test",
    level: str = "byte",
    preset: str = "standard",
    trust_remote_code: bool = False,
    output: Path | None = None,
) -> dict:
    """The scores of a model on a dataset: printed as a table, written as JSON, and returned.

    Args:
        model: a folder that a training wrote, or a repository.
        dataset: a name or path, as in `dataset:` of a run.
        task: by default what the model was made for.
        limit: images, or bytes of text; by default all.
        mosaic: of detection: four images in a square.
        split: of a text: "test" or "validation".
        level, preset: of a text, as in `dataset:` of the run that trained the model.
        trust_remote_code: run code that comes with a repository.
        output: the JSON file; by default evaluation.json in the model's folder.
    """
    try:
        task = task or task_of(model, trust_remote_code)
        if task not in AUTO_CLASSES:
            raise RunError(f"{model} is for {task}, and only {', '.join(AUTO_CLASSES)} can be evaluated.")
        with told(model, RunError, UNLOADABLE):
            network = AUTO_CLASSES[task].from_pretrained(model, trust_remote_code=trust_remote_code).eval()
        with tempfile.TemporaryDirectory() as folder:
            training = EfficientTrainingArguments(
                output_dir=folder, per_device_eval_batch_size=batch_size, disable_tqdm=True
            )
            if task == "text-generation":
                options = TextOptions(name=dataset, level=level, preset=preset, limit=limit, tokenizer=model)
                trainer = text_trainer(network, training, options, split)
            else:
                images = load_images(dataset, evaluation_limit=limit, boxes=task == "object-detection").evaluation
                processor = AutoImageProcessor.from_pretrained(model, trust_remote_code=trust_remote_code)
                trainer = image_trainer(network, training, images, processor, mosaic)
            with torch.inference_mode():
                metrics = trainer.evaluate()
    except BAD_INPUT as error:
        raise RunError(str(error)) from error
    found = {name: value for name, value in metrics.items() if name != "epoch" and not COSTS.search(name)}
    results = {
        "model": model,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "dataset": dataset,
        "task": task,
        "split": split if task == "text-generation" else "evaluation",
        "samples": len(trainer.eval_dataset),
        "metrics": {name.removeprefix("eval_"): finite(value) for name, value in found.items()},
        "seconds": metrics.get("eval_runtime"),
        "samples_per_second": metrics.get("eval_samples_per_second"),
        "versions": {"hf_efficient": hf_efficient.__version__, "torch": torch.__version__},
    }
    if trainer.is_world_process_zero():
        file = output or Path(model if Path(model).is_dir() else ".") / "evaluation.json"
        with told(f"{file} can't be written", RunError):
            replace_file(file, json.dumps(results, indent=2) + "\n")
        print(f"{table(results)}\n\nWritten to {file}", flush=True)
    return results


def image_trainer(
    model: PreTrainedModel, training: EfficientTrainingArguments, images: ImageSet, processor, mosaic: bool
) -> EfficientTrainer:
    images = with_labels_of(model, images)
    looks = {
        "mean": processor.image_mean if processor.do_normalize else 0.0,
        "std": processor.image_std if processor.do_normalize else 1.0,
        "image_size": (processor.size["height"], processor.size["width"]),
    }
    if images.boxes is not None:
        batches = ImageBatches(images, **looks, task="detection", mosaic=mosaic)
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


def text_trainer(
    model: PreTrainedModel, training: EfficientTrainingArguments, options: TextOptions, split: str
) -> MemoryTrainer:
    data = load_language_data(options)
    text = whole(getattr(data, split), segment_length(options, model), training)
    return MemoryTrainer(model, training, eval_dataset=text, processing_class=data.tokenizer)


def table(results: dict) -> str:
    rows = {
        "model": f"{results['model']}, {results['parameters']:,} parameters",
        "dataset": f"{results['dataset']}, {results['samples']:,} {results['split']} samples",
        **{name: shown(value) for name, value in results["metrics"].items()},
        "samples per second": shown(results["samples_per_second"]),
    }
    return facts(rows)
