"""Draws what the models look at, as contact sheets: python scripts/draw_pictures.py --help.

Three PNG files: what each heuristic of HuggingGreenViT keeps of an image, where MobileViTv2's context comes from, and
the attention rollout of a ViT. Kept patches need no trained model. The other two show a model of yours (--mobilevit,
--vit); without one, one with random weights, which shows that drawing works and nothing else.
"""

import argparse
import sys
from pathlib import Path

from hf_efficient.cli import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", type=Path, help="default: two photographs of scikit-learn")
    parser.add_argument("--keep", type=float, default=0.5, help="share of the patches to keep (default: 0.5)")
    parser.add_argument("--patch-size", type=int, default=16, help="of images of 224 x 224 pixels (default: 16)")
    parser.add_argument("--mobilevit", metavar="DIR_OR_REPO", help="a MobileViTv2 for image classification")
    parser.add_argument("--vit", metavar="DIR_OR_REPO", help="a KerformerViT or HuggingGreenViT for classification")
    parser.add_argument("--output", type=Path, default=Path("results/pictures"), metavar="DIR")
    arguments = parser.parse_args()
    if not 0 < arguments.keep <= 1:
        parser.error(f"--keep {arguments.keep}: a share in (0, 1] is needed.")
    if arguments.patch_size < 1 or 224 % arguments.patch_size:
        parser.error(f"--patch-size {arguments.patch_size}: a divisor of 224 is needed.")
    from hf_efficient.experiments.pictures import draw_pictures  # when `run` has hushed what imports say

    for file in draw_pictures(**vars(arguments)):
        print(f"written: {file}")


if __name__ == "__main__":
    sys.exit(run(main))
