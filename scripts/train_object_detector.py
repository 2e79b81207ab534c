"""Train an object detector: any of ours, or of transformers' with the same loss and layout, on images with boxes.

    python scripts/train_object_detector.py configs/tiny_imagenet_hugginggreen_vit_detection_small.yaml

The same as `hf-efficient train`, for this task alone. After a file, --help lists all keys.
"""

import sys

from hf_efficient.cli import run
from hf_efficient.cli.train import main

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], tasks=["object-detection"]))
