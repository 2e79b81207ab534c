"""Evaluate a model on a dataset: classifiers of images and texts, detectors, segmentation, language models.

    hf-efficient evaluate results/cifar10_hugginggreen_vit_small
    hf-efficient evaluate results/cifar10_hugginggreen_vit_small --pictures looks
    hf-efficient evaluate results/pydocs_compressive_performer pydocs --split validation --output scores.json

What is found is printed as a table and written as JSON. Data are read as by the run that trained the model: level,
preset, limits, context and batch size are its own unless they are given here.
"""

from pathlib import Path

from ..extras import require
from .parser import Parser, number

TASKS = ("image-classification", "object-detection", "image-segmentation", "text-generation", "text-classification")


def main(argv: list[str]) -> None:
    parser = Parser("evaluate", __doc__)
    parser.add_argument("model", help="a folder that a training wrote, or a repository")
    parser.add_argument("dataset", nargs="?", help="a name or path, as in `dataset:` of a run; by default the run's")
    parser.add_argument("--task", choices=TASKS, help="by default what the model was made for")
    parser.add_argument("--batch-size", type=number(int, 1, 2**20), help="by default the run's, or 64")
    parser.add_argument(
        "--limit", type=number(int, 1), help="images, texts, or bytes of text; by default as in the run, or all"
    )
    parser.add_argument("--mosaic", action="store_true", default=None, help="of detection: four images in a square")
    parser.add_argument("--split", choices=["test", "validation"], default="test", help="validation: what chose")
    parser.add_argument("--level", help="of a text's tokens: byte, bpe or word; by default the run's")
    parser.add_argument("--preset", help="how a text is cleaned and split: standard or paper; by default the run's")
    parser.add_argument("--text-column", help="of labelled texts; by default the run's, or one with a usual name")
    parser.add_argument("--label-column", help="the same for the labels")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with a repository")
    parser.add_argument("--output", type=Path, help="the JSON file; by default evaluation.json in the model's folder")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="where to draw confusions and predictions")
    arguments = vars(parser.parse_args(argv))
    require("train")
    from ..training.evaluation import evaluate

    evaluate(**arguments)
