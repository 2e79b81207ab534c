"""Shares a model on the Hub.

    python scripts/push_to_hub.py results/cifar10_kerformer_vit me/kerformer-vit --dry-run

The same as `hf-efficient push`; --help lists the options.
"""

import sys

from hf_efficient.cli import run
from hf_efficient.cli.push import main

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
