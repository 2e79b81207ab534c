"""Evaluate a model from a folder or repository on a dataset: image classifiers, object detectors, language models.

    python scripts/evaluate_model.py results/cifar10_hugginggreen_vit_small cifar10

The same as `hf-efficient evaluate`; --help lists the options.
"""

import sys

from hf_efficient.cli import run
from hf_efficient.cli.evaluate import main

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
