"""Trained models that come with the package: list them, or make one anew.

    hf-efficient zoo list
    hf-efficient zoo build hugginggreen-vit-cifar10
    hf-efficient predict hugginggreen-vit-cifar10 photo.png

`build` trains the model by the run that comes with the package, as long as that takes, and packs it in half precision.
"""

from pathlib import Path

from ..tables import columns
from .parser import Parser


def main(argv: list[str]) -> None:
    parser = Parser("zoo", __doc__)
    parser.add_argument("action", nargs="?", choices=("list", "build"), default="list", help="(default: list)")
    parser.add_argument("name", nargs="?", help="of the model to build")
    parser.add_argument("--run", type=Path, help="a finished run of its config to pack, instead of training one")
    parser.add_argument("--to", type=Path, help="the folder to write (default: its place in the package)")
    arguments = parser.parse_args(argv)
    if arguments.action == "build" and arguments.name is None:
        parser.error("name the model to build: `hf-efficient zoo list` shows them.")
    from ..experiments import zoo

    if arguments.action == "build":
        print(f"written: {zoo.build(arguments.name, arguments.run, arguments.to)}")
    else:
        print(columns([("model", "task", "test split", "weights"), *zoo.described()]))
