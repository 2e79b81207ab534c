"""Pre-train an image encoder: on masked patches, without labels, or by hard-negative contrast between classes.

    python scripts/pretrain_image_encoder.py configs/tiny_imagenet_hugginggreen_vit_rq3_masked_small.yaml
    python scripts/pretrain_image_encoder.py configs/cifar10_hugginggreen_vit_rq3_contrastive_small.yaml --seed 1

The same as `hf-efficient train`, for these tasks alone. After a file, --help lists all keys.
"""

import sys

from hf_efficient.cli import run
from hf_efficient.cli.train import main

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], tasks=["masked-image-modeling", "contrastive-learning"]))
