"""Train a classifier of texts, or of pairs of texts: any encoder of ours, or of transformers', on any labelled texts.

    python scripts/train_text_classifier.py configs/sst2_kerformer_text_small.yaml --learning_rate 1e-3
    torchrun --nproc_per_node 2 scripts/train_text_classifier.py configs/imdb_kerformer_text_small.yaml

The same as `hf-efficient train`, for this task alone. After a file, --help lists all keys.
"""

import sys

from hf_efficient.cli import run
from hf_efficient.cli.train import main

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], tasks=["text-classification"]))
