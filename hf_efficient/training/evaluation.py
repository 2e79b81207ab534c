"""How good a model is on a dataset: classifiers of images and texts, detectors, segmentation, language models.

What the run that trained a model has said of its data holds here too: tokens, splits, limits, context and batches, all
of which change the scores of a text. It stands in results.json beside the weights.
"""

import json
import tempfile
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForObjectDetection,
    AutoModelForSemanticSegmentation,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerBase,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import cached_file

import hf_efficient

from ..data.collators import take_batch
from ..data.image_batches import ImageBatches
from ..data.image_sets import ImageOptions, ImageSet, MaskOptions
from ..data.labelled_texts import LabelledTextOptions, LabelledTexts, load_evaluation_texts, load_labelled_texts
from ..data.text_streams import TextOptions, load_language_data
from ..errors import BAD_INPUT, UNLOADABLE, told
from ..inference import task_of
from ..tables import facts
from .arguments import EfficientTrainingArguments
from .checkpoints import replace_file
from .classification_trainer import ClassificationTrainer
from .detection_trainer import DetectionTrainer
from .errors import RunError
from .history import COSTS
from .launch import finite, shown
from .memory_trainer import MemoryTrainer
from .segmentation_trainer import SegmentationTrainer
from .tasks.language_modelling import segment_length, whole
from .tasks.object_detection import DetectionOptions
from .tasks.text_classification import cut_texts, describe_cut, load_tokenizer, make_batches
from .trainer import EfficientTrainer

AUTO_CLASSES = {
    "image-classification": AutoModelForImageClassification,
    "object-detection": AutoModelForObjectDetection,
    "image-segmentation": AutoModelForSemanticSegmentation,
    "text-generation": AutoModelForCausalLM,
    "text-classification": AutoModelForSequenceClassification,
}
IMAGES = {
    "image-classification": ImageOptions,
    "object-detection": DetectionOptions,
    "image-segmentation": MaskOptions,
}

Samples = TypeVar("Samples", ImageSet, LabelledTexts)

# What a model keeps to on other data as well.
OF_THE_MODEL = ("level", "preset", "segment_length", "max_length", "image_size", "mosaic")


def evaluate(
    model: str,
    dataset: str | None = None,
    *,
    task: str | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    mosaic: bool | None = None,
    split: str = "test",
    level: str | None = None,
    preset: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    trust_remote_code: bool = False,
    output: Path | None = None,
    pictures: Path | None = None,
) -> dict:
    """The scores of a model on a dataset: printed as a table, written as JSON, and returned.

    Args:
        model: a folder that a training wrote, or a repository.
        dataset: a name or path, as in `dataset:` of a run; by default what the model was trained on.
        task: by default what the model was made for.
        batch_size: by default that of the run's evaluation, or 64.
        limit: images, texts, or bytes of text; by default as in the run, or all.
        mosaic: of detection: four images in a square; by default as in the run.
        split: "test", or "validation": that of a text, or the training samples that the run held out.
        level, preset: of a text; by default as in the run, or "byte" and "standard".
        text_column, label_column: of labelled texts; by default as in the run, or those with usual names.
        trust_remote_code: run code that comes with a repository.
        output: the JSON file; by default evaluation.json in the model's folder.
        pictures: a folder for confusion.png and predictions.png, as training leaves them.
    """
    try:
        task = task or task_of(model, trust_remote_code)
        if task not in AUTO_CLASSES:
            raise RunError(f"{model} is for {task}, and only {', '.join(AUTO_CLASSES)} can be evaluated.")
        run = results_of(model)
        limited = {"limit" if task == "text-generation" else "evaluation_limit": limit}
        given = {"mosaic": mosaic, "level": level, "preset": preset}
        given |= {"text_column": text_column, "label_column": label_column}
        section = data_of(run, dataset, {**limited, **given})
        dataset = section["name"]
        with told(model, RunError, UNLOADABLE):
            network = AUTO_CLASSES[task].from_pretrained(model, trust_remote_code=trust_remote_code).eval()
        with tempfile.TemporaryDirectory() as folder:
            training = EfficientTrainingArguments(output_dir=folder, disable_tqdm=True)
            own_rows = batch_of(run, training.per_device_eval_batch_size)
            rows = batch_size or own_rows
            if task == "text-generation" and run and rows != own_rows:
                warnings.warn(
                    f"the run's evaluation read {own_rows} streams of its text at once instead of {rows}: they begin "
                    "at other places, and the scores are others.",
                    stacklevel=2,
                )
            training.per_device_eval_batch_size = max(1, rows // training.world_size)
            if task == "text-generation":
                options = TextOptions(**{**options_in(section, TextOptions), "tokenizer": model})
                trainer = text_trainer(network, training, options, split)
            elif task == "text-classification":
                options = LabelledTextOptions(**{**options_in(section, LabelledTextOptions), "level": None})
                tokenizer = load_tokenizer(model, trust_remote_code)
                own = options.name == run.get("dataset")
                trainer = labelled_text_trainer(network, training, options, tokenizer, split, own)
            else:
                processor = AutoImageProcessor.from_pretrained(model, trust_remote_code=trust_remote_code)
                images = read_images(section, split, IMAGES[task], processor)
                trainer = image_trainer(network, training, images, processor, section.get("mosaic", False))
            with torch.inference_mode():
                metrics = trainer.evaluate()
                drawn = trainer.pictures() if pictures is not None else {}
    except BAD_INPUT as error:
        raise RunError(str(error)) from error
    found = {name: value for name, value in metrics.items() if name != "epoch" and not COSTS.search(name)}
    results = {
        "model": model,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "dataset": dataset,
        "task": task,
        "split": split,
        "samples": len(trainer.eval_dataset),
        "metrics": {name.removeprefix("eval_"): finite(value) for name, value in found.items()},
        "seconds": metrics.get("eval_runtime"),
        "samples_per_second": metrics.get("eval_samples_per_second"),
        "versions": {"hf_efficient": hf_efficient.__version__, "torch": torch.__version__},
    }
    if task == "text-generation":
        results["unknown_rate"] = trainer.eval_dataset.text.unknown_rate
    if task == "text-classification":
        results["cut_texts"] = cut_texts(trainer.eval_dataset)
    if trainer.is_world_process_zero():
        file = output or Path(model if Path(model).is_dir() else ".") / "evaluation.json"
        with told(f"{file} can't be written", RunError):
            replace_file(file, json.dumps(results, indent=2) + "\n")
        with told(f"{pictures} can't be written to", RunError):
            for name, picture in drawn.items():
                pictures.mkdir(parents=True, exist_ok=True)
                picture.save(pictures / f"{name}.png")
        said = describe_cut(split, results["cut_texts"]) if "cut_texts" in results else ""
        print("\n\n".join(filter(None, [table(results), said, f"Written to {file}"])), flush=True)
    return results


def results_of(model: str) -> dict:
    """What the run that trained a model left in its results.json; empty if there is none."""
    try:
        found = json.loads(Path(cached_file(model, "results.json")).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("settings"), dict) else {}


def data_of(run: dict, dataset: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """The section `dataset` to evaluate with: what is given, else what the run had."""
    own = run.get("settings", {}).get("dataset") or {}
    name = dataset or own.get("name")
    if name is None:
        raise RunError("no dataset is given, and nothing beside the model says what it was trained on.")
    given = {key: value for key, value in given.items() if value is not None}
    if not own:
        return {"level": "byte", "preset": "standard", **given, "name": name}
    same = name == own.get("name")
    counts = (*OF_THE_MODEL, "limit") if same else OF_THE_MODEL
    was = {"level": TextOptions.level, "preset": TextOptions.preset, **own}
    if other := [key for key in counts if key in given and given[key] != was.get(key)]:
        changes = ", ".join(f"{key}={was.get(key)} instead of {given[key]}" for key in other)
        warnings.warn(f"the model was trained with {changes}: its scores are not those of its run.", stacklevel=3)
    kept = own if same else {key: own[key] for key in OF_THE_MODEL if key in own}
    return {**kept, **given, "name": name}


def options_in(section: dict[str, Any], kind: type) -> dict[str, Any]:
    known = {field.name for field in fields(kind)}
    return {key: value for key, value in section.items() if key in known}


def batch_of(run: dict, default: int) -> int:
    """How many rows the run's evaluation read at once: as many streams does a text have."""
    training = run.get("settings", {}).get("training") or {}
    return training.get("per_device_eval_batch_size", default) * run.get("processes", 1)


def read_images(section: dict[str, Any], split: str, options: type[ImageOptions], processor) -> ImageSet:
    """What the run was tested with, or what chose its weights; where nothing is left for a test, that is the same."""
    data = options(**{"image_size": size_of(processor), **options_in(section, options)})
    test = data.load_test()
    if split == "validation" and test is None:
        raise RunError("the run held out no training images for a validation split: evaluate the split test.")
    return test if split == "test" and test is not None else data.load().evaluation


def size_of(processor) -> tuple[int, int]:
    return processor.size["height"], processor.size["width"]


def image_trainer(
    model: PreTrainedModel, training: EfficientTrainingArguments, images: ImageSet, processor, mosaic: bool
) -> EfficientTrainer:
    images = with_labels_of(model, images)
    looks = {
        "mean": processor.image_mean if processor.do_normalize else 0.0,
        "std": processor.image_std if processor.do_normalize else 1.0,
        "image_size": size_of(processor),
    }
    if images.kind == "objects":
        batches = ImageBatches(images, **looks, task="detection", mosaic=mosaic)
        return DetectionTrainer(model, training, data_collator=take_batch, eval_dataset=batches)
    if images.kind == "mask":
        batches = ImageBatches(images, **looks, task="segmentation")
        return SegmentationTrainer(model, training, data_collator=take_batch, eval_dataset=batches)
    batches = ImageBatches(images, **looks)
    return ClassificationTrainer(model, training, data_collator=take_batch, eval_dataset=batches)


def with_labels_of(model: PreTrainedModel, samples: Samples) -> Samples:
    """Images or texts with labels numbered as the model's are."""
    known = [model.config.id2label[i] for i in range(model.config.num_labels)]
    if known == samples.class_names:
        return samples
    if missing := [name for name in samples.class_names if name not in known]:
        raise RunError(f"the model does not know {len(missing)} of the dataset's classes, as {missing[0]!r}.")
    if hasattr(samples, "renumbered"):
        return samples.renumbered(known)
    numbers = torch.tensor([known.index(name) for name in samples.class_names])
    return replace(samples, labels=numbers[samples.labels], class_names=known)


def text_trainer(
    model: PreTrainedModel, training: EfficientTrainingArguments, options: TextOptions, split: str
) -> MemoryTrainer:
    data = load_language_data(options)
    text = whole(getattr(data, split), segment_length(options, model), training)
    return MemoryTrainer(model, training, eval_dataset=text, processing_class=data.tokenizer)


def labelled_text_trainer(
    model: PreTrainedModel,
    training: EfficientTrainingArguments,
    options: LabelledTextOptions,
    tokenizer: PreTrainedTokenizerBase,
    split: str,
    own: bool,
) -> EfficientTrainer:
    """
    Args:
        own: whether these are the data that the model was trained on.
    """
    if not own:
        classes = [model.config.id2label[i] for i in range(model.config.num_labels)]
        texts = load_evaluation_texts(options, classes, split)
    else:
        splits = load_labelled_texts(options)
        if split == "validation" and splits.test is None:
            raise RunError("there is only one split beside training: evaluate the split test.")
        texts = splits.evaluation if split == "validation" or splits.test is None else splits.test
    batches = make_batches(model, tokenizer, options, with_labels_of(model, texts), split)
    return ClassificationTrainer(model, training, data_collator=take_batch, eval_dataset=batches)


def table(results: dict) -> str:
    rows = {
        "model": f"{results['model']}, {results['parameters']:,} parameters",
        "dataset": f"{results['dataset']}, {results['samples']:,} {results['split']} samples",
        **{name: shown(value) for name, value in results["metrics"].items()},
        **({"unknown tokens": f"{rate:.2%}"} if (rate := results.get("unknown_rate")) else {}),
        "samples per second": shown(results["samples_per_second"]),
    }
    return facts(rows)
