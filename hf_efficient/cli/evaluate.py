"""Evaluate a model on a dataset: image classifiers, object detectors, language models.

    hf-efficient evaluate results/cifar10_hugginggreen_vit_small cifar10
    hf-efficient evaluate results/pydocs_compressive_performer pydocs --split test --output scores.json

Images are those of the split for evaluation. What is found is printed as a table and written as JSON. A text must be
split as it was for training: --level and --preset are those of the run.
"""

from pathlib import Path

from ..extras import require
from .parser import Parser, number

TASKS = ("image-classification", "object-detection", "text-generation")


def main(argv: list[str]) -> None:
    parser = Parser("evaluate", __doc__)
    parser.add_argument("model", help="a folder that a training wrote, or a repository")
    parser.add_argument("dataset", help="a name or path, as in `dataset:` of a run")
    parser.add_argument("--task", choices=TASKS, help="by default what the model was made for")
    parser.add_argument("--batch-size", type=number(int, 1, 2**20), default=64)
    parser.add_argument("--limit", type=number(int, 1), help="images, or bytes of text; by default all")
    parser.add_argument("--mosaic", action="store_true", help="of detection: four images in a square")
    parser.add_argument("--split", choices=["test", "validation"], default="test", help="of a text")
    parser.add_argument("--level", default="byte", help="of a text's tokens: byte, bpe or word")
    parser.add_argument("--preset", default="standard", help="how a text is cleaned and split: standard or paper")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with a repository")
    parser.add_argument("--output", type=Path, help="the JSON file; by default evaluation.json in the model's folder")
    arguments = vars(parser.parse_args(argv))
    require("train")
    from ..training.evaluation import evaluate

    evaluate(**arguments)
