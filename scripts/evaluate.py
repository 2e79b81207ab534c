"""Evaluate a model from a folder or repository on a dataset: image classifiers, object detectors, language models.

    python scripts/evaluate.py results/cifar10_hugginggreen_vit_small cifar10
    python scripts/evaluate.py results/pydocs_compressive_performer pydocs --split test --output scores.json

What it does is in evaluate_model.py. The library `evaluate`, which our metrics are made with, has this file's name,
and Python looks beside a script first: so, imported by that name, this file is that library.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

if __name__ == "evaluate":
    here = Path(__file__).resolve().parent
    elsewhere = [folder for folder in sys.path if Path(folder or ".").resolve() != here]
    if (spec := PathFinder.find_spec("evaluate", elsewhere)) is None:
        raise ModuleNotFoundError("No module named 'evaluate': pip install evaluate.", name="evaluate")
    sys.modules["evaluate"] = library = module_from_spec(spec)
    spec.loader.exec_module(library)
elif __name__ == "__main__":
    from evaluate_model import main

    from hf_efficient.training.launch import script

    script(main)
