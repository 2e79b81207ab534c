"""The image processor that belongs to a model: one of transformers' own, which loads anywhere without our code.

What `image_processor_for` returns is careful besides: images become RGB as in training (`to_rgb`), so 16-bit grey is
scaled, and what has no pixels or no range of values is an error. Saved, it is transformers' own processor; loaded
again, it is as careful as that.
"""

from PIL import Image
from transformers import DetrImageProcessorPil, SegformerImageProcessorPil, ViTImageProcessorPil
from transformers.configuration_utils import PreTrainedConfig
from transformers.image_processing_utils import BaseImageProcessor

from .images import to_rgb


class _Careful:
    def process_image(self, image, do_convert_rgb=None, *args, **kwargs):
        if isinstance(image, Image.Image) and (do_convert_rgb or 0 in image.size):
            image = to_rgb(image)
        return super().process_image(image, do_convert_rgb, *args, **kwargs)

    def to_dict(self) -> dict:
        name = type(self).__mro__[2].__name__.removesuffix("Pil")
        return {**super().to_dict(), "image_processor_type": name}


class CarefulViTImageProcessor(_Careful, ViTImageProcessorPil):
    pass


class CarefulSegformerImageProcessor(_Careful, SegformerImageProcessorPil):
    pass


class CarefulDetrImageProcessor(_Careful, DetrImageProcessorPil):
    pass


TASKS = {
    "image-classification": CarefulViTImageProcessor,
    "object-detection": CarefulDetrImageProcessor,
    "image-segmentation": CarefulSegformerImageProcessor,
}
ARCHITECTURES = {"ForObjectDetection": "object-detection", "ForSemanticSegmentation": "image-segmentation"}


def image_processor_for(config: PreTrainedConfig, task: str | None = None, **options) -> BaseImageProcessor:
    """A processor for a model's config: any image becomes RGB of `image_size`, scaled and normalised.

    Args:
        task: a pipeline's name, by default that of the config's architecture. Processors for detection and
            segmentation bring that pipeline's post-processing.
        options: of the processor, over what follows from the config; `image_size` where the config has none.

    Example:
        >>> processor = image_processor_for(model.config)
        >>> processor.save_pretrained(directory)  # beside the weights
    """
    if task is None:
        name = (config.architectures or [""])[0]
        task = next((task for end, task in ARCHITECTURES.items() if name.endswith(end)), "image-classification")
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; known: {', '.join(TASKS)}.")
    size = options.pop("image_size", None) or config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    fields = {"size": {"height": height, "width": width}, "do_convert_rgb": config.num_channels == 3}
    for name in ("image_mean", "image_std"):
        fields[name] = getattr(config, name, None) or [0.5] * config.num_channels
    if task == "object-detection":
        fields["do_pad"] = False
    return TASKS[task](**{**fields, **options})
