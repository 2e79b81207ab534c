"""Train an object detector: any of ours, or of transformers' with the same loss and layout, on images with boxes.

    hf-efficient train tiny_imagenet_hugginggreen_vit_detection_small
    hf-efficient train tiny_imagenet_hugginggreen_vit_detection_small --mosaic true --num_queries 16

Killed at any moment and started again by the same command, it goes on from its last checkpoint and ends as if nothing
had happened. Its output_dir is a model that pipeline("object-detection") takes.
"""

from transformers import AutoModelForObjectDetection

from hf_efficient import image_processor_for

from ...data.augmentation import Augmentation
from ...data.collators import take_batch
from ...data.image_batches import ImageBatches
from ...data.image_sets import ImageSplits, load_images
from ..build_model import build_model
from ..detection_trainer import DetectionTrainer
from ..launch import train_and_report
from ..run import Run, load_run
from .image_classification import load_splits, pixel_statistics


def load_objects(
    name: str,
    *,
    mosaic: bool = False,
    limit: int | None = None,
    evaluation_limit: int | None = None,
    validation: int | None = None,
    skip_corrupt: bool = False,
    image_size: int | None = None,
) -> ImageSplits:
    """Images with the box of their object.

    Args:
        mosaic: each image in a square with three others, so that there are four objects
        limit: at most so many images of each split, balanced over the classes
        evaluation_limit: of the evaluation split, if it is to be another
        validation: so many training images are held out for evaluation, and the evaluation split is a test that
            chooses nothing
        skip_corrupt: leave out what can't be read rather than stop
        image_size: height and width of images that are larger, or of different sizes
    """
    return load_images(
        name,
        limit=limit,
        evaluation_limit=evaluation_limit,
        validation=validation,
        skip_corrupt=skip_corrupt,
        image_size=image_size,
        boxes=True,
    )


TASK = "object-detection"
SECTIONS = {"dataset": load_objects, "augmentation": Augmentation}
DEFAULTS = {"training": {"metric_for_best_model": "map_50"}}
METRICS = ("map", "map_50", "found_50", "iou")


def main(argv: list[str] | None = None) -> dict:
    return train_and_report(*prepare(argv))


def prepare(argv: list[str] | None = None) -> tuple[DetectionTrainer, Run]:
    """What trains a run, before it has begun."""
    run = load_run(argv, __doc__, SECTIONS, DEFAULTS, TASK, METRICS)
    return build_trainer(run), run


def build_trainer(run: Run) -> DetectionTrainer:
    images, test = load_splits(run, load_objects)
    mean, std = pixel_statistics(images.train)
    names = images.train.class_names
    model = build_model(
        run.model,
        AutoModelForObjectDetection,
        seed=run.training.seed,
        num_labels=len(names),
        id2label=dict(enumerate(names)),
        label2id={name: index for index, name in enumerate(names)},
        image_mean=mean,
        image_std=std,
    )
    mosaic = run.dataset.get("mosaic", False)
    looks = {"mean": mean, "std": std, "image_size": model.config.image_size, "task": "detection", "mosaic": mosaic}
    augmentation = Augmentation(**run.augmentation)
    return DetectionTrainer(
        model,
        run.training,
        data_collator=take_batch,
        train_dataset=ImageBatches(images.train, **looks, augmentation=augmentation, seed=run.training.seed),
        eval_dataset=ImageBatches(images.evaluation, **looks),
        test_dataset=None if test is None else ImageBatches(test, **looks),
        processing_class=image_processor_for(model.config, "object-detection", image_mean=mean, image_std=std),
    )
