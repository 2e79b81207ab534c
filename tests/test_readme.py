"""The README's Python snippets run as they stand, top to bottom, like a newcomer would paste them."""

import re
from importlib.util import find_spec
from pathlib import Path

from hf_efficient.attention import list_attentions

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_snippets_run():
    snippets = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    assert len(snippets) >= 4
    names = {}
    for snippet in snippets:
        if "from peft" in snippet and find_spec("peft") is None:
            continue  # of an extra
        exec(compile(snippet, "README.md", "exec"), names)


def test_the_table_names_every_mechanism():
    missing = [name for name in list_attentions() if f"| `{name}` " not in README]
    assert not missing, f"run `make bench` and bring the README's table up to date: {missing}"
