"""Export a model to ONNX, and check it with onnxruntime.

    hf-efficient export results/cifar10_kerformer_vit_small --to model.onnx
    hf-efficient export results/pydocs_compressive_performer --to writer.onnx

Image classifiers, detectors, segmentation models, masked image models and encoders; the file takes batches of any
size. Of a MobileViTv2 detector the predictions of all anchors are exported: suppressing overlapping boxes is left to
whoever runs it. Of a masked image model, what it makes of an image without a mask.

Of the language model there are two files, one that reads a whole segment and one that reads a single token:
hf_efficient.onnx_language.OnnxLanguageModel runs both.
"""

from ..extras import require
from .parser import Parser


def main(argv: list[str]) -> None:
    parser = Parser("export", __doc__)
    parser.add_argument("model", help="a folder, or a repository on the Hub")
    parser.add_argument("--to", default="model.onnx", metavar="FILE", help="what to write (default: %(default)s)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with a repository")
    arguments = parser.parse_args(argv)
    require("export")
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from ..inference import read_config

    disable_progress_bar()
    set_verbosity_error()  # the exporter says that it is experimental; what it wrote is compared
    config = read_config(arguments.model, arguments.trust_remote_code)
    export = export_text if config.model_type == "compressive_performer" else export_vision
    difference = export(arguments.model, arguments.to, arguments.trust_remote_code)
    print(f"onnxruntime agrees with PyTorch to {difference:.1g}.")


def export_vision(model: str, file: str, trust_remote_code: bool) -> float:
    from ..onnx_export import export_onnx

    done = export_onnx(model, file, trust_remote_code)
    tell_of(done.file)
    print(f"pixel_values (batch, {', '.join(map(str, done.input_shape))}) -> {', '.join(done.outputs)}")
    return done.difference


def export_text(model: str, file: str, trust_remote_code: bool) -> float:
    from ..onnx_language import export_language_model

    done = export_language_model(model, file, trust_remote_code)
    for file, tokens in zip(done.files, (done.segment_length, 1), strict=True):
        tell_of(file)
        print(f"input_ids (batch, {tokens}) and what came before -> logits, and the same after it")
    return done.difference


def tell_of(file) -> None:
    print(f"Written: {file}, {file.stat().st_size / 1e6:.1f} MB")
