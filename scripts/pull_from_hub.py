"""Fetches a model from the Hub.

    python scripts/pull_from_hub.py me/kerformer-vit --revision v1

The same as `hf-efficient pull`; --help lists the options.
"""

import sys

from hf_efficient.cli import run
from hf_efficient.cli.pull import main

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
