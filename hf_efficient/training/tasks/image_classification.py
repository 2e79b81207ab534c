"""Train an image classifier: any of ours, or of transformers', on any images.

    hf-efficient train cifar10_kerformer_vit_small --learning_rate 1e-3
    torchrun --nproc_per_node 2 -m hf_efficient train cifar10_kerformer_vit_small

Killed at any moment and started again by the same command, it goes on from its last checkpoint and ends as if nothing
had happened. Its output_dir is a model that pipeline("image-classification") takes.
"""

from transformers import AutoModelForImageClassification

from hf_efficient import image_processor_for

from ...data.augmentation import Augmentation
from ...data.collators import take_batch
from ...data.image_batches import ImageBatches
from ...data.image_sets import ImageOptions
from ..classification_trainer import ClassificationTrainer
from ..launch import train_and_report
from ..losses import soft_label_loss
from ..metrics.classification import METRICS
from ..run import Run, load_run
from .images import build_for_classes, load_splits, pixel_statistics, size_for

TASK = "image-classification"
SECTIONS = {"dataset": ImageOptions, "augmentation": Augmentation}
DEFAULTS = {"training": {"metric_for_best_model": "accuracy"}}


def main(argv: list[str] | None = None) -> dict:
    return train_and_report(*prepare(argv))


def prepare(argv: list[str] | None = None) -> tuple[ClassificationTrainer, Run]:
    """What trains a run, before it has begun."""
    run = load_run(argv, __doc__, SECTIONS, DEFAULTS, TASK, METRICS)
    return build_trainer(run), run


def build_trainer(run: Run) -> ClassificationTrainer:
    images, test = load_splits(run)
    mean, std = pixel_statistics(images.train)
    model = build_for_classes(run, AutoModelForImageClassification, images.train.class_names, mean, std)
    size = size_for(model, images.train)
    augmentation = Augmentation(**run.augmentation)
    looks = {"mean": mean, "std": std, "image_size": size}
    if not run.training.image_size_schedule:  # which needs pixels
        looks["features"] = getattr(model, "fixed_features", None)
    return ClassificationTrainer(
        model,
        run.training,
        data_collator=take_batch,
        train_dataset=ImageBatches(images.train, **looks, augmentation=augmentation, seed=run.training.seed),
        eval_dataset=ImageBatches(images.evaluation, **looks),
        test_dataset=None if test is None else ImageBatches(test, **looks),
        processing_class=image_processor_for(model.config, image_mean=mean, image_std=std, image_size=size),
        compute_loss_func=soft_label_loss(model) if augmentation.softens_labels else None,
    )
