"""A mechanism that is written by a command: it is CONTRIBUTING's, and works where it is put.

In a clone, `tests/test_contributing.py` holds it to the tests of every mechanism.
"""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

from hf_efficient.attention import build_attention, registry
from hf_efficient.cli import main
from hf_efficient.cli.new_mechanism import EXAMPLE

ROOT = Path(__file__).parents[2]


def test_the_example_is_the_one_of_contributing():
    (first, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.S)
    assert EXAMPLE.read_text() == first


def test_outside_of_a_clone_it_is_a_module_to_import(tmp_path, monkeypatch, capsys):
    assert main(["new-mechanism", "sharp_cosine"]) == 0
    assert "Written: sharp_cosine.py" in capsys.readouterr().out
    monkeypatch.syspath_prepend(tmp_path)
    known = dict(registry._MECHANISMS)
    try:
        assert importlib.import_module("sharp_cosine").SharpCosine.name == "sharp_cosine"
        attention = build_attention("sharp_cosine", hidden_size=8, num_heads=2)
        assert attention(torch.randn(1, 5, 8)).hidden_states.shape == (1, 5, 8)
    finally:
        registry._MECHANISMS.clear()
        registry._MECHANISMS.update(known)
        sys.modules.pop("sharp_cosine", None)


@pytest.mark.parametrize("name", ["SharpCosine", "sharp-cosine", "9lives", "class", "_hidden", "a__b", "../up"])
def test_a_bad_name_is_refused(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["new-mechanism", name])
    assert stopped.value.code == 2 and "such as sharp_cosine" in capsys.readouterr().err
    assert not list(Path().rglob("*.py"))


def test_what_is_there_is_not_overwritten(capsys):
    assert main(["new-mechanism", "performer"]) == 1
    assert "there is a mechanism performer already" in capsys.readouterr().err
    Path("mine.py").write_text("precious")
    assert main(["new-mechanism", "mine"]) == 1 and Path("mine.py").read_text() == "precious"
