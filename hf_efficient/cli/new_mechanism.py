"""Start an attention mechanism of your own: writes a file that works, for you to change.

    hf-efficient new-mechanism sharp_cosine

In a clone the file goes to hf_efficient/attention/, where the registry, the tests and the benchmark find it. Elsewhere
it goes to the current folder: import it, and its name works in every model.
"""

import keyword
import re
from pathlib import Path

from ..errors import CommandError, told
from .parser import Parser

EXAMPLE = Path(__file__).with_name("example_mechanism.txt")  # the one of CONTRIBUTING.md
ROOM = Path("hf_efficient/attention")


def main(argv: list[str]) -> None:
    parser = Parser("new-mechanism", __doc__)
    parser.add_argument("name", help="in snake_case: of the file, of the class and in the registry")
    name = parser.parse_args(argv).name
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        parser.error(f"{name!r} must be words in small letters with _ between them, such as sharp_cosine.")
    in_clone = (ROOM / "base.py").is_file()
    file = (ROOM if in_clone else Path()) / f"{name}.py"
    from ..attention import list_attentions

    if name in list_attentions() or file.exists():
        raise CommandError(f"there is a mechanism {name} already: choose another name.")
    with told(f"{file} can't be written"):
        file.write_text(source(name, in_clone), encoding="utf-8")
    print(f"Written: {file}. It is cosine attention, to be changed into yours.")
    if in_clone:
        print(f'make test ARGS="-k {name}" holds it to its formula, `hf-efficient bench attention` times it.')
    else:
        print(f'import {name}; hf_efficient.attention.build_attention("{name}", hidden_size=64, num_heads=4)')


def source(name: str, in_clone: bool) -> str:
    """The example under another name; outside of the package it imports that."""
    text = EXAMPLE.read_text(encoding="utf-8")
    class_name = "".join(word.capitalize() for word in name.split("_"))
    text = text.replace("class Cosine(", f"class {class_name}(")
    return text if in_clone else text.replace("\nfrom .", "\nfrom hf_efficient.attention.")
