"""Train a model in stages, each on what the one before learned: HuggingGreen's research question 3 in one command.

    python scripts/train_in_stages.py configs/tiny_imagenet_hugginggreen_vit_rq3_masked_small.yaml \\
        configs/cifar10_hugginggreen_vit_rq3_contrastive_small.yaml \\
        configs/cifar10_hugginggreen_vit_rq3_finetune_small.yaml

The same as `hf-efficient train` with several files. What follows them (--seed 1) holds for all stages; --output_dir is
the folder of their folders.
"""

import sys

from hf_efficient.cli import run
from hf_efficient.cli.train import main

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
