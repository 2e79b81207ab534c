"""Train an image classifier: any of ours, or of transformers', on any images.

    python scripts/train_image_classifier.py configs/cifar10_kerformer_vit_small.yaml --learning_rate 1e-3
    torchrun --nproc_per_node 2 scripts/train_image_classifier.py configs/cifar10_kerformer_vit_small.yaml

The same as `hf-efficient train`, for this task alone. After a file, --help lists all keys.
"""

import sys

from hf_efficient.cli import run
from hf_efficient.cli.train import main

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], tasks=["image-classification"]))
