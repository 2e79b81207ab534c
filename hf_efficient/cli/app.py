"""Open a page in the browser: look at images, watch a language model write, compare mechanisms.

    hf-efficient app hugginggreen-vit-cifar10
    hf-efficient app results/demo/digits_hugginggreen_vit results/demo/pydocs_compressive_performer
    hf-efficient app results/camvid_mobilevit_v2_small --port 7861

Without a model it shows the zoo's. Models are folders, repositories on the Hub or names of `hf-efficient zoo`, whose
models follow those that are named. The page is served to this machine alone, needs no network, and nothing leaves it,
unless --host or --share say otherwise.
"""

from .parser import Parser, number


def main(argv: list[str]) -> None:
    parser = Parser("app", __doc__)
    parser.add_argument("models", nargs="*", metavar="model", help="shown before the zoo's models")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    parser.add_argument("--port", type=number(int, 1, 65535), help="(default: the first free one from 7860 on)")
    parser.add_argument("--share", action="store_true", help="let the whole internet in, through gradio.live")
    parser.add_argument("--without-zoo", action="store_true", help="show only the models that are named")
    arguments = parser.parse_args(argv)
    from ..app import launch

    launch(
        arguments.models,
        host=arguments.host,
        port=arguments.port,
        share=arguments.share,
        with_zoo=not arguments.without_zoo,
    )
