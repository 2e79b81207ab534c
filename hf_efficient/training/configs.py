"""The runs that come with the package, one YAML each: hf_efficient/configs is the folder configs/ of a clone."""

import difflib
import re
from itertools import takewhile
from pathlib import Path

from .errors import RunError

FOLDER = Path(__file__).parents[1] / "configs"


def list_configs() -> dict[str, Path]:
    """Name -> file."""
    return {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))}


def find_config(name: str) -> Path:
    """The file of a run: that path, or what comes with the package under that name."""
    if (path := Path(name)).is_file():
        return path
    known = list_configs()
    if name in known:
        return known[name]
    close = difflib.get_close_matches(path.name.removesuffix(".yaml"), known, 1, 0.5)
    hint = f"Did you mean {close[0]}?" if close else "`hf-efficient list configs` shows what there is."
    raise RunError(f"there is no file {name!r}, and no run of that name comes with hf_efficient. {hint}")


def describe_config(file: Path) -> str:
    """The first sentence of the comment that a file begins with."""
    comment = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return re.split(r"\.(?= [A-Z-]|$)", " ".join(line[1:].strip() for line in comment), maxsplit=1)[0]
