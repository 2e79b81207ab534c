"""Train semantic segmentation, a class for each pixel: ours, or transformers' models of the same layout.

    hf-efficient train camvid_mobilevit_v2_deeplabv3_small
    hf-efficient train camvid_mobilevit_v2_pspnet_small --dataset.name my_folder    # with images/ and masks/

Killed at any moment and started again by the same command, it goes on from its last checkpoint and ends as if nothing
had happened. Its output_dir is a model that pipeline("image-segmentation") takes; predictions.png shows what it sees.
"""

from transformers import AutoModelForSemanticSegmentation

from hf_efficient import image_processor_for

from ...data.augmentation import Augmentation
from ...data.collators import take_batch
from ...data.image_batches import ImageBatches
from ...data.image_sets import MaskOptions
from ..launch import train_and_report
from ..run import Run, load_run
from ..segmentation_trainer import SegmentationTrainer
from .images import build_for_classes, load_splits, pixel_statistics, size_for

TASK = "image-segmentation"
SECTIONS = {"dataset": MaskOptions, "augmentation": Augmentation}
DEFAULTS = {"training": {"metric_for_best_model": "mean_iou"}}
METRICS = ("mean_iou", "pixel_accuracy", "mean_accuracy")


def main(argv: list[str] | None = None) -> dict:
    return train_and_report(*prepare(argv))


def prepare(argv: list[str] | None = None) -> tuple[SegmentationTrainer, Run]:
    """What trains a run, before it has begun."""
    run = load_run(argv, __doc__, SECTIONS, DEFAULTS, TASK, METRICS)
    return build_trainer(run), run


def build_trainer(run: Run) -> SegmentationTrainer:
    images, test = load_splits(run, MaskOptions)
    mean, std = pixel_statistics(images.train)
    model = build_for_classes(run, AutoModelForSemanticSegmentation, images.train.class_names, mean, std)
    size = size_for(model, images.train)
    looks = {"mean": mean, "std": std, "image_size": size, "task": "segmentation"}
    augmentation = Augmentation(**run.augmentation)
    return SegmentationTrainer(
        model,
        run.training,
        data_collator=take_batch,
        train_dataset=ImageBatches(images.train, **looks, augmentation=augmentation, seed=run.training.seed),
        eval_dataset=ImageBatches(images.evaluation, **looks),
        test_dataset=None if test is None else ImageBatches(test, **looks),
        processing_class=image_processor_for(model.config, TASK, image_mean=mean, image_std=std, image_size=size),
    )
