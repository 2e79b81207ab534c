"""A mechanism that is written by a command: it is CONTRIBUTING's, and works where it is put."""

import importlib
import re
import shutil
import subprocess
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


@pytest.mark.slow
def test_in_a_clone_it_passes_the_tests_of_every_mechanism(tmp_path):
    for part in ("hf_efficient", "tests", "pyproject.toml"):
        source = ROOT / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / part)
    run = {"cwd": tmp_path, "capture_output": True, "text": True}
    written = subprocess.run([sys.executable, "-m", "hf_efficient", "new-mechanism", "sharp_cosine"], **run)
    assert written.returncode == 0 and (tmp_path / "hf_efficient/attention/sharp_cosine.py").is_file(), written.stderr
    tests = ["tests/attention/test_contract.py", "tests/test_imports.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "-k", "sharp_cosine"]
    tested = subprocess.run(command, **run)
    assert tested.returncode == 0 and re.search(r"\d\d passed", tested.stdout), tested.stdout[-3000:]
