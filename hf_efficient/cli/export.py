"""Export a vision model to ONNX, and check it with onnxruntime.

    hf-efficient export results/cifar10_kerformer_vit_small --to model.onnx

Image classifiers, detectors, segmentation models, masked image models and encoders; the file takes batches of any
size. Of a MobileViTv2 detector the predictions of all anchors are exported: suppressing overlapping boxes is left to
whoever runs it. Of a masked image model, what it makes of an image without a mask.
"""

from .parser import Parser


def main(argv: list[str]) -> None:
    parser = Parser("export", __doc__)
    parser.add_argument("model", help="a folder, or a repository on the Hub")
    parser.add_argument("--to", default="model.onnx", metavar="FILE", help="what to write (default: %(default)s)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with a repository")
    arguments = parser.parse_args(argv)
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from ..onnx_export import export_onnx

    disable_progress_bar()
    set_verbosity_error()  # the exporter says that it is experimental; what it wrote is compared
    done = export_onnx(arguments.model, arguments.to, arguments.trust_remote_code)
    sizes = ", ".join(map(str, done.input_shape))
    print(f"Written: {done.file}, {done.file.stat().st_size / 1e6:.1f} MB")
    print(f"pixel_values (batch, {sizes}) -> {', '.join(done.outputs)}")
    print(f"onnxruntime agrees with PyTorch to {done.difference:.1g}.")
