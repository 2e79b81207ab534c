"""Train an object detector: any of ours, or of transformers' with the same loss and layout, on images with boxes.

    hf-efficient train bccd_mobilevit_v2_small
    hf-efficient train bccd_mobilevit_v2_small --dataset.name annotations/instances_train.json
    hf-efficient train tiny_imagenet_hugginggreen_vit_detection_small --mosaic true --num_queries 16

Killed at any moment and started again by the same command, it goes on from its last checkpoint and ends as if nothing
had happened. Its output_dir is a model that pipeline("object-detection") takes.
"""

from dataclasses import dataclass

from transformers import AutoModelForObjectDetection

from hf_efficient import image_processor_for

from ...data.augmentation import Augmentation
from ...data.collators import take_batch
from ...data.image_batches import ImageBatches
from ...data.image_sets import ObjectOptions
from ..detection_trainer import DetectionTrainer
from ..launch import train_and_report
from ..run import Run, load_run
from .images import build_for_classes, load_splits, pixel_statistics, size_for


@dataclass(frozen=True)
class DetectionOptions(ObjectOptions):
    """
    Args:
        mosaic: each image in a square with three others, so that there are the objects of four
    """

    mosaic: bool = False


TASK = "object-detection"
SECTIONS = {"dataset": DetectionOptions, "augmentation": Augmentation}
DEFAULTS = {"training": {"metric_for_best_model": "map_50"}}
METRICS = ("map", "map_50", "map_small", "map_medium", "map_large", "found_50", "iou")


def main(argv: list[str] | None = None) -> dict:
    return train_and_report(*prepare(argv))


def prepare(argv: list[str] | None = None) -> tuple[DetectionTrainer, Run]:
    """What trains a run, before it has begun."""
    run = load_run(argv, __doc__, SECTIONS, DEFAULTS, TASK, METRICS)
    return build_trainer(run), run


def build_trainer(run: Run) -> DetectionTrainer:
    images, test = load_splits(run, DetectionOptions)
    mean, std = pixel_statistics(images.train)
    model = build_for_classes(run, AutoModelForObjectDetection, images.train.class_names, mean, std)
    size = size_for(model, images.train)
    mosaic = run.dataset.get("mosaic", False)
    looks = {"mean": mean, "std": std, "image_size": size, "task": "detection", "mosaic": mosaic}
    augmentation = Augmentation(**run.augmentation)
    return DetectionTrainer(
        model,
        run.training,
        data_collator=take_batch,
        train_dataset=ImageBatches(images.train, **looks, augmentation=augmentation, seed=run.training.seed),
        eval_dataset=ImageBatches(images.evaluation, **looks),
        test_dataset=None if test is None else ImageBatches(test, **looks),
        processing_class=image_processor_for(
            model.config, "object-detection", image_mean=mean, image_std=std, image_size=size
        ),
    )
