"""Pre-train an image encoder: on masked patches, without labels, or by hard-negative contrast between classes.

    hf-efficient train tiny_imagenet_hugginggreen_vit_rq3_masked_small
    hf-efficient train cifar10_hugginggreen_vit_rq3_contrastive_small --seed 1

Its output_dir is what `--pretrained` of the next training takes, be it a classifier, a detector or another encoder;
`hf-efficient train first second third` does all of it in one command. Killed at any moment and started again, it goes
on from its last checkpoint.
"""

from transformers import AutoModel, AutoModelForMaskedImageModeling

from hf_efficient import image_processor_for

from ...data.augmentation import Augmentation
from ...data.collators import take_batch
from ...data.image_batches import ImageBatches
from ...data.image_sets import ImageOptions, ImageSplits
from ..build_model import build_model
from ..errors import RunError
from ..image_stages import (
    ContrastiveArguments,
    ContrastiveModel,
    ContrastiveTrainer,
    MaskedArguments,
    contrastive_scores,
    masked_images,
)
from ..launch import train_and_report
from ..run import Run, load_run
from ..trainer import EfficientTrainer
from .images import load_splits, pixel_statistics

MASKED, CONTRASTIVE = "masked-image-modeling", "contrastive-learning"
SECTIONS = {"dataset": ImageOptions, "augmentation": Augmentation}


def train_masked(argv: list[str] | None = None) -> dict:
    return train_and_report(*prepare_masked(argv))


def train_contrastive(argv: list[str] | None = None) -> dict:
    return train_and_report(*prepare_contrastive(argv))


def prepare_masked(argv: list[str] | None = None) -> tuple[EfficientTrainer, Run]:
    """What trains a run, before it has begun."""
    run = load_run(argv, __doc__, {**SECTIONS, "training": MaskedArguments}, task=MASKED)
    return masked_trainer(run, *load_data(run)), run


def prepare_contrastive(argv: list[str] | None = None) -> tuple[ContrastiveTrainer, Run]:
    """What trains a run, before it has begun."""
    run = load_run(
        argv, __doc__, {**SECTIONS, "training": ContrastiveArguments}, task=CONTRASTIVE, metrics=["recall_at_1"]
    )
    return contrastive_trainer(run, *load_data(run)), run


def load_data(run: Run) -> tuple[ImageSplits, Augmentation]:
    images, _ = load_splits(run)
    augmentation = Augmentation(**run.augmentation)
    if augmentation.softens_labels:
        raise RunError("augmentation: pre-training goes without mixup, cutmix and label_smoothing.")
    return images, augmentation


def masked_trainer(run: Run, images: ImageSplits, augmentation: Augmentation) -> EfficientTrainer:
    mean, std = pixel_statistics(images.train)
    seed = run.training.seed
    model = build_model(run.model, AutoModelForMaskedImageModeling, seed=seed, image_mean=mean, image_std=std)
    looks = {"mean": mean, "std": std, "image_size": model.config.image_size, "task": "pixels"}
    train = ImageBatches(images.train, **looks, augmentation=augmentation, seed=seed)
    masks_itself = hasattr(model, "random_mask")  # of the patches that it keeps
    return EfficientTrainer(
        model,
        run.training,
        data_collator=take_batch,
        train_dataset=train if masks_itself else masked_images(train, model.config, seed),
        eval_dataset=masked_images(ImageBatches(images.evaluation, **looks), model.config),
        processing_class=image_processor_for(model.config, image_mean=mean, image_std=std),
    )


def contrastive_trainer(run: Run, images: ImageSplits, augmentation: Augmentation) -> ContrastiveTrainer:
    args = run.training
    smallest = min(int(part.labels.bincount()[part.labels.unique()].min()) for part in images)
    if args.images_per_class > smallest:
        raise RunError(f"training.images_per_class={args.images_per_class}, but a class has only {smallest} images.")
    classes = min(len(part.labels.unique()) for part in images)
    if args.classes_per_batch > classes:
        raise RunError(
            f"training.per_device_train_batch_size={args.per_device_train_batch_size} holds {args.classes_per_batch} "
            f"classes of images_per_class={args.images_per_class}, but there are {classes}: make batches smaller, or "
            "images_per_class larger."
        )
    mean, std = pixel_statistics(images.train)
    encoder = build_model(run.model, AutoModel, seed=args.seed, image_mean=mean, image_std=std)
    model = ContrastiveModel(encoder, args.projection_size, args.margin, args.negatives)
    looks = {"mean": mean, "std": std, "image_size": encoder.config.image_size}
    return ContrastiveTrainer(
        model,
        args,
        data_collator=take_batch,
        train_dataset=ImageBatches(images.train, **looks, augmentation=augmentation, seed=args.seed),
        eval_dataset=ImageBatches(images.evaluation, **looks),
        processing_class=image_processor_for(encoder.config, image_mean=mean, image_std=std),
        compute_metrics=contrastive_scores(args),
    )
