"""The image processor that belongs to a model: one of transformers' own, which loads anywhere without our code."""

import transformers
from transformers.configuration_utils import PreTrainedConfig
from transformers.image_processing_utils import BaseImageProcessor

TASKS = ("image-classification", "object-detection", "image-segmentation")


def image_processor_for(config: PreTrainedConfig, task: str = "image-classification", **options) -> BaseImageProcessor:
    """A processor for a model's config: any image becomes RGB of `image_size`, scaled and normalised.

    Args:
        task: a pipeline's name. Processors for detection and segmentation bring that pipeline's post-processing.
        options: of the processor, over what follows from the config.

    Example:
        >>> processor = image_processor_for(model.config)
        >>> processor.save_pretrained(directory)  # beside the weights
    """
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; known: {', '.join(TASKS)}.")
    height, width = (config.image_size,) * 2 if isinstance(config.image_size, int) else config.image_size
    size = {"height": height, "width": width}
    fields = {"size": size, "do_convert_rgb": config.num_channels == 3}
    if task == "image-segmentation":
        fields |= {"do_center_crop": False, "do_flip_channel_order": False}
        return transformers.MobileViTImageProcessorPil(**{**fields, **options})
    statistics = [0.5] * config.num_channels
    fields |= {
        "image_mean": getattr(config, "image_mean", None) or statistics,
        "image_std": getattr(config, "image_std", None) or statistics,
    }
    if task == "object-detection":
        return transformers.DetrImageProcessorPil(**{**fields, "do_pad": False, **options})
    return transformers.ViTImageProcessorPil(**{**fields, **options})
