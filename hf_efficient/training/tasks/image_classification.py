"""Train an image classifier: any of ours, or of transformers', on any images.

    hf-efficient train cifar10_kerformer_vit_small --learning_rate 1e-3
    torchrun --nproc_per_node 2 -m hf_efficient train cifar10_kerformer_vit_small

Killed at any moment and started again by the same command, it goes on from its last checkpoint and ends as if nothing
had happened. Its output_dir is a model that pipeline("image-classification") takes.
"""

from collections.abc import Callable

import torch
from transformers import AutoModelForImageClassification

from hf_efficient import image_processor_for

from ...data.augmentation import Augmentation
from ...data.collators import take_batch
from ...data.image_batches import ImageBatches
from ...data.image_sets import ImageSet, ImageSplits, load_images
from ...errors import told
from ..build_model import build_model
from ..errors import RunError
from ..launch import train_and_report
from ..losses import soft_label_loss
from ..metrics.classification import METRICS, score
from ..run import Run, load_run
from ..trainer import EfficientTrainer

TASK = "image-classification"
SECTIONS = {"dataset": load_images, "augmentation": Augmentation}
DEFAULTS = {"training": {"metric_for_best_model": "accuracy"}}


def main(argv: list[str] | None = None) -> dict:
    return train_and_report(*prepare(argv))


def prepare(argv: list[str] | None = None) -> tuple[EfficientTrainer, Run]:
    """What trains a run, before it has begun."""
    run = load_run(argv, __doc__, SECTIONS, DEFAULTS, TASK, METRICS)
    return build_trainer(run), run


def build_trainer(run: Run) -> EfficientTrainer:
    images, test = load_splits(run)
    mean, std = pixel_statistics(images.train)
    names = images.train.class_names
    model = build_model(
        run.model,
        AutoModelForImageClassification,
        seed=run.training.seed,
        num_labels=len(names),
        id2label=dict(enumerate(names)),
        label2id={name: index for index, name in enumerate(names)},
        image_mean=mean,
        image_std=std,
    )
    augmentation = Augmentation(**run.augmentation)
    looks = {"mean": mean, "std": std, "image_size": model.config.image_size}
    if not run.training.image_size_schedule:  # which needs pixels
        looks["features"] = getattr(model, "fixed_features", None)
    return EfficientTrainer(
        model,
        run.training,
        data_collator=take_batch,
        train_dataset=ImageBatches(images.train, **looks, augmentation=augmentation, seed=run.training.seed),
        eval_dataset=ImageBatches(images.evaluation, **looks),
        test_dataset=None if test is None else ImageBatches(test, **looks),
        processing_class=image_processor_for(model.config, image_mean=mean, image_std=std),
        compute_loss_func=soft_label_loss(model) if augmentation.softens_labels else None,
        compute_metrics=score,
    )


def load_splits(run: Run, load: Callable[..., ImageSplits] = load_images) -> tuple[ImageSplits, ImageSet | None]:
    """The images of a run, and what is left for a test if it is evaluated on a part of the training images."""
    with told("dataset", RunError):
        images = load(**run.dataset)
        test = load(**{**run.dataset, "validation": None}).evaluation if run.dataset.get("validation") else None
    return images, test


def pixel_statistics(images: ImageSet) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, as shares of 255"""
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in images.pixels.unbind(1)]).double()
    levels, shares = torch.arange(256) / 255, counts / counts.sum(1, keepdim=True)
    mean = shares @ levels.double()
    std = (shares @ levels.double().square() - mean.square()).clamp_min(1e-6).sqrt()
    return [round(value, 4) for value in mean.tolist()], [round(value, 4) for value in std.tolist()]
