"""Vision models as ONNX files, held to onnxruntime. onnx is imported when a model is exported."""

import logging
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForMaskedImageModeling,
    AutoModelForObjectDetection,
    AutoModelForSemanticSegmentation,
)
from transformers.modeling_utils import PreTrainedModel

from .errors import UNLOADABLE, CommandError, told
from .extras import require
from .inference import read_config

AUTO_CLASSES = {
    "ForImageClassification": AutoModelForImageClassification,
    "ForMaskedImageModeling": AutoModelForMaskedImageModeling,
    "ForObjectDetection": AutoModelForObjectDetection,
    "ForSemanticSegmentation": AutoModelForSemanticSegmentation,
    "Model": AutoModel,
}
TOLERANCE = 1e-3  # of the largest difference, relative to the largest output


class Exported(NamedTuple):
    file: Path
    input_shape: tuple[int, int, int]  # of one image: channels, height, width
    outputs: list[str]
    difference: float  # between onnxruntime and PyTorch, at most


def export_onnx(model: str, file: str | Path, trust_remote_code: bool = False) -> Exported:
    """Writes the ONNX file of a vision model, for batches of any size, and compares its outputs with the model's.

    Args:
        model: a folder, or a repository on the Hub.
        file: what to write.
    """
    require("export")
    network = load(model, trust_remote_code)
    size, channels = network.config.image_size, network.config.num_channels
    height, width = (size, size) if isinstance(size, int) else size
    images = torch.randn(3, channels, height, width, generator=torch.Generator().manual_seed(0))
    file = Path(file)
    with told(f"{file} can't be written"):
        file.parent.mkdir(parents=True, exist_ok=True)
    write(network, images[:2], file)  # traced with two, so that one and three show that any number will do
    outputs, difference = compare(network, images, file)
    return Exported(file, (channels, height, width), outputs, difference)


def load(model: str, trust_remote_code: bool) -> PreTrainedModel:
    """The model as it is exported."""
    config = read_config(model, trust_remote_code)
    name = (config.architectures or ["no known architecture"])[0]
    auto = next((auto for ending, auto in AUTO_CLASSES.items() if name.endswith(ending)), None)
    if auto is None or not hasattr(config, "image_size"):
        raise CommandError(
            f"{model} holds {name}, which can't be exported: image classifiers, detectors, segmentation models, "
            "masked image models, image encoders and CompressivePerformer can."
        )
    # Non-maximum suppression is a loop, which takes ONNX minutes: predictions of all anchors are exported.
    fields = {"ssd_suppression": False} if hasattr(config, "ssd_suppression") else {}
    with told(model, causes=UNLOADABLE):
        return auto.from_pretrained(model, trust_remote_code=trust_remote_code, **fields).eval()


def write(network: PreTrainedModel, images: torch.Tensor, file: Path) -> None:
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    batch = {"pixel_values": {0: torch.export.Dim.AUTO}}  # leaving height and width dynamic takes minutes
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # the exporters talk of themselves
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        try:
            program = OnnxExporter().export(network, {"pixel_values": images}, config=OnnxConfig(dynamic_shapes=batch))
        except torch.onnx.OnnxExporterError as error:
            mechanism = getattr(network.config, "attention", "its")
            raise CommandError(f"torch.onnx can't translate a model with {mechanism!r} attention.") from error
    with told(f"{file} can't be written"):
        program.save(file)


@torch.no_grad()
def compare(network: PreTrainedModel, images: torch.Tensor, file: Path) -> tuple[list[str], float]:
    """The names of the outputs, and the largest difference between onnxruntime's and PyTorch's."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names, worst = [node.name for node in session.get_outputs()], 0.0
    for batch in (images[:1], images):
        expected = network(pixel_values=batch)
        found = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
        for name, value in zip(names, found, strict=True):
            if name not in expected:
                continue
            truth, value = expected[name].float(), torch.from_numpy(value).float()
            difference = (value - truth).abs().max().item() if value.shape == truth.shape else float("inf")
            if not difference <= TOLERANCE * max(1.0, truth.abs().max().item()):
                raise CommandError(f"{file} was written, but onnxruntime's {name} differs by {difference:.2g}.")
            worst = max(worst, difference)
    return names, worst
