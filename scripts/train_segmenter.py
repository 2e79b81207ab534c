"""Train semantic segmentation, a class for each pixel, on images with masks.

    python scripts/train_segmenter.py configs/camvid_mobilevit_v2_deeplabv3_small.yaml

The same as `hf-efficient train`, for this task alone. After a file, --help lists all keys.
"""

import sys

from hf_efficient.cli import run
from hf_efficient.cli.train import main

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], tasks=["image-segmentation"]))
