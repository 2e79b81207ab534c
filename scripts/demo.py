"""The main job in a few minutes: train a vision model and a language model, see what it took, use both. make demo"""

import argparse
import sys
from pathlib import Path

from hf_efficient.cli import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, metavar="N", help="of training, for a shorter demonstration")
    parser.add_argument("--output", type=Path, default=Path("results/demo"), metavar="DIR")
    arguments = parser.parse_args()
    from hf_efficient.experiments.demo import demonstrate  # when `run` has hushed what imports say

    demonstrate(**vars(arguments))


if __name__ == "__main__":
    sys.exit(run(main))
