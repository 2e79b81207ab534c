"""Make a Space of the Hub: the page of `hf-efficient app` with a model of yours.

    hf-efficient space results/cifar10_kerformer_vit_small --push me/my-space --dry-run
    hf-efficient space me/kerformer-vit --to my-space

Writes a repository that runs by itself: app.py, requirements.txt, README.md with the Space's metadata, hf_efficient as
it is here, and the model, unless that is on the Hub already. --to keeps it; `python app.py` in that folder runs it.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from .parser import Parser


def main(argv: list[str]) -> None:
    parser = Parser("space", __doc__)
    parser.add_argument("model", help="a folder, a repository on the Hub, or a name in the zoo")
    parser.add_argument("--push", metavar="REPO_ID", help="share it as this Space: name, or owner/name")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="write it here")
    parser.add_argument("--title", help="by default the model's name")
    parser.add_argument("--private", action="store_true", default=None, help="visible to you only")
    parser.add_argument("--dry-run", action="store_true", help="show what would be sent, and send nothing")
    arguments = parser.parse_args(argv)
    if arguments.push is None and arguments.to is None:
        parser.error("give --push, --to, or both.")
    from ..app import space
    from .push import report

    with TemporaryDirectory() as scratch:
        folder = space.write(arguments.model, arguments.to or Path(scratch), arguments.title)
        if arguments.to:
            print(f"written: {folder} (python {folder / 'app.py'} runs it)")
        if arguments.push:
            print(report(space.share(folder, arguments.push, arguments.private, arguments.dry_run)))
