"""What tasks on images share: their data, and a model that knows the classes."""

from collections.abc import Sequence

import torch
from transformers.modeling_utils import PreTrainedModel

from ...data.image_sets import ImageOptions, Images, ImageSet, ImageSplits
from ...errors import told
from ..build_model import build_config, build_model
from ..errors import RunError
from ..run import Run

WORKERS = 2  # that decode, where images are not stored


def load_splits(run: Run, options: type[ImageOptions] = ImageOptions) -> tuple[ImageSplits, Images | None]:
    """The images of a run, and those that it is tested with when nothing is left to choose, if there are any."""
    size = getattr(build_config(run.model), "image_size", None)
    with told("dataset", RunError):
        data = options(**{"image_size": size, **run.dataset})
        splits, test = data.load(), data.load_test()
    if not isinstance(splits.train, ImageSet) and "dataloader_num_workers" not in run.given.get("training", {}):
        run.training.dataloader_num_workers = WORKERS
    return splits, test


def build_for_classes(
    run: Run, auto_class: type, names: Sequence[str], mean: list[float], std: list[float]
) -> PreTrainedModel:
    """The model of a run, with the names of its classes and what its pixels are normalised with."""
    return build_model(
        run.model,
        auto_class,
        seed=run.training.seed,
        num_labels=len(names),
        id2label=dict(enumerate(names)),
        label2id={name: index for index, name in enumerate(names)},
        image_mean=mean,
        image_std=std,
    )


def size_for(model: PreTrainedModel, images: Images) -> int | tuple[int, int]:
    """The model's image_size; that of the images, if its config has none."""
    return getattr(model.config, "image_size", None) or images.shape[2:]


def pixel_statistics(images: Images) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, as shares of 255; of a sample, if images are not stored."""
    channels = images.sample().unbind(1)
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in channels]).double()
    levels, shares = torch.arange(256) / 255, counts / counts.sum(1, keepdim=True)
    mean = shares @ levels.double()
    std = (shares @ levels.double().square() - mean.square()).clamp_min(1e-6).sqrt()
    return [round(value, 4) for value in mean.tolist()], [round(value, 4) for value in std.tolist()]
