"""Train a causal language model, with or without memory: any of ours, or of transformers', on any text.

    python scripts/train_language_model.py configs/pydocs_compressive_performer.yaml --learning_rate 1e-3
    torchrun --nproc_per_node 2 scripts/train_language_model.py configs/enwik8_compressive_performer_small.yaml

The same as `hf-efficient train`, for this task alone. After a file, --help lists all keys.
"""

import sys

from hf_efficient.cli import run
from hf_efficient.cli.train import main

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], tasks=["text-generation"]))
