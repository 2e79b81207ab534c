"""Fetches a model from the Hub: python scripts/pull_from_hub.py me/kerformer-vit --revision v1"""

import argparse
import sys

from hf_efficient import hub

DESCRIPTION = """
Downloads a repository into the cache, or into --to, compares every file with its checksum, and prints the folder,
which from_pretrained() takes. A commit's id as --revision is the only one that always means the same.
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repo_id", help="owner/name")
    parser.add_argument("--revision", default="main", help="a branch, tag or commit (default: main)")
    parser.add_argument("--to", dest="local_dir", metavar="FOLDER", help="instead of the cache")
    parser.add_argument("--timeout", type=float, metavar="S", help="in seconds (default: 120, and 1 for each MiB)")
    return parser.parse_args()


def main() -> None:
    try:
        print(hub.pull(**vars(parse_arguments())))
    except hub.HubError as error:
        sys.exit(f"pull_from_hub: {error}")
    except KeyboardInterrupt:
        sys.exit("pull_from_hub: interrupted; the same command goes on from here.")


if __name__ == "__main__":
    main()
