"""Fetch a model from the Hub.

    hf-efficient pull me/kerformer-vit --revision v1 --to results/kerformer-vit

Downloads a repository into the cache, or into --to, compares every file with its checksum, and prints the folder,
which from_pretrained() takes. A commit's id as --revision is the only one that always means the same.
"""

from .parser import SECONDS, Parser


def main(argv: list[str]) -> None:
    parser = Parser("pull", __doc__)
    parser.add_argument("repo_id", help="owner/name")
    parser.add_argument("--revision", default="main", help="a branch, tag or commit (default: main)")
    parser.add_argument("--to", dest="local_dir", metavar="FOLDER", help="instead of the cache")
    parser.add_argument("--timeout", type=SECONDS, metavar="S", help="in seconds (default: 120, and 1 for each MiB)")
    arguments = vars(parser.parse_args(argv))
    from .. import hub

    print(hub.pull(**arguments))
