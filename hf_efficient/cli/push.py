"""Share a model on the Hub.

    hf-efficient push results/cifar10_kerformer_vit_small me/kerformer-vit --dry-run

Sends a folder (a trained model, its processor, its card) to a repository on the Hub, in one commit, and compares the
checksums afterwards. Files that are there already are not sent again; if nothing has changed there is no commit.

The token comes from `hf auth login` or the variable HF_TOKEN. It is written nowhere, and a file that holds a token is
refused. Links that lead out of the folder are not shared.
"""

from .parser import SECONDS, Parser


def main(argv: list[str]) -> None:
    parser = Parser("push", __doc__)
    parser.add_argument("folder", help="what to share, as save_pretrained() or a training left it")
    parser.add_argument("repo_id", help="where: name, or owner/name")
    visibility = parser.add_mutually_exclusive_group()
    visibility.add_argument("--private", action="store_true", default=None, help="visible to you only")
    visibility.add_argument("--public", action="store_false", dest="private", help="visible to all")
    parser.add_argument("--branch", help="made if need be (default: main)")
    parser.add_argument("--tag", help="a name for this commit, such as v1")
    parser.add_argument("--message", default="Upload with hf_efficient", help="of the commit (default: %(default)s)")
    parser.add_argument("--timeout", type=SECONDS, metavar="S", help="in seconds (default: 120, and 1 for each MiB)")
    parser.add_argument("--allow-tokens", action="store_true", help="share what looks like a token of somebody else")
    parser.add_argument("--dry-run", action="store_true", help="show what would be sent, and send nothing")
    arguments = vars(parser.parse_args(argv))
    from .. import hub

    print(report(hub.push(arguments.pop("folder"), arguments.pop("repo_id"), **arguments)))


def report(pushed) -> str:
    """What a `hub.Push` did, file by file."""
    lines = [f"{size:>14,}  {name}" for name, size in pushed.sent.items()]
    lines += [f"{'unchanged':>14}  {name}" for name in pushed.unchanged]
    lines += [f"{'removed':>14}  {name}" for name in pushed.removed]
    lines.append(f"{sum(pushed.sent.values()):>14,}  bytes in {len(pushed.sent)} files for {pushed.repo_id}")
    if pushed.commit is None:
        lines.append("This was a dry run: nothing has been sent." + (f" {pushed.note}" if pushed.note else ""))
    else:
        changed = "commit" if pushed.sent or pushed.removed else "nothing to do, still commit"
        lines.append(f"{changed} {pushed.commit} on {pushed.branch}, checksums compared: {pushed.url}")
    return "\n".join(lines)
