"""Writes a trained model's card: python scripts/write_model_card.py results/cifar10_hugginggreen_vit_small"""

import argparse
import sys
from pathlib import Path

from hf_efficient.cli import run
from hf_efficient.errors import CommandError
from hf_efficient.model_card import write_card

DESCRIPTION = """
Writes the model card of a folder that a training script left: from its config.json, results.json and energy.json, into
its README.md. The training scripts do that themselves; this is for cards that compare, or stand elsewhere:

  python scripts/write_model_card.py results/cifar10_hugginggreen_vit_small --compare-with results/cifar10_vit_small \\
      --output model_cards/cifar10_hugginggreen_vit_small.md

A card that a person has written is left alone.
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the trained model")
    parser.add_argument("--compare-with", type=Path, nargs="+", default=[], metavar="DIR", help="runs on that data")
    parser.add_argument("--repo-id", help="what the snippets load (default: the run's name)")
    parser.add_argument("--license", default="apache-2.0", help="of the weights (default: %(default)s)")
    parser.add_argument("--note", help="what else is to be known of the energy and the times")
    parser.add_argument("--output", type=Path, metavar="FILE", help="(default: README.md in the folder)")
    return parser.parse_args()


def main() -> None:
    arguments = vars(parse_arguments())
    try:
        file = write_card(arguments.pop("folder"), **arguments)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if file is not None:
        print(f"written: {file}")


if __name__ == "__main__":
    sys.exit(run(main))
