"""CONTRIBUTING's examples, put where it says: one file is a mechanism, one folder and one entry a model.

Both go into a copy of the tree, with a mechanism that `hf-efficient new-mechanism` writes. Its tests then run
unedited: those that are parametrised over the mechanisms or the families, for the new ones, and those that read the
tree, whole.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PARTS = (
    "hf_efficient",
    "benchmarks",
    "configs",
    "docs",
    "scripts",
    "tests",
    "CONTRIBUTING.md",
    "README.md",
    "pyproject.toml",
)
WRITTEN = "sharp_cosine"
NEW = ("cosine", "pooled_vit", WRITTEN)
TREE_READERS = ("test_imports", "test_list", "test_every_causal_mechanism_with_a_state_fits")
SLOW = ("test_importing_is_light", "500-")  # a process of its own, and formulas of 500² · D numbers
TESTS = [f"tests/{name}" for name in ("attention", "benchmarks", "cli", "layers", "models", "test_imports.py")]
TESTS += ["tests/test_remote_code.py"]
LONG = [
    "tests/models/test_export.py",
    "tests/models/test_remote_code_loading.py",
]  # minutes each


def examples() -> dict[str, str]:
    """The files that CONTRIBUTING shows, by path: each a block of code after a line that ends in `path`:"""
    found = re.findall(r"`(hf_efficient/\S+\.py)`:\n\n```python\n(.*?)```", TEXT, flags=re.S)
    assert len(found) == 4, "a mechanism, and the three files of a model"
    return dict(found)


def entry() -> str:
    return re.search(r"The entry in `FAMILIES`:\n\n```python\n(.*?)```", TEXT, flags=re.S).group(1)


@pytest.fixture(scope="module")
def tree(tmp_path_factory, preloaded) -> Path:
    """A copy of the tree with the examples in it."""
    copy = tmp_path_factory.mktemp("copy")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / part)
    for name, source in examples().items():
        assert not (copy / name).exists()
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(source, encoding="utf-8")
    auto = copy / "hf_efficient/models/auto.py"
    source = auto.read_text(encoding="utf-8")
    assert source.count("FAMILIES = {\n") == 1
    auto.write_text(source.replace("FAMILIES = {\n", "FAMILIES = {\n" + entry()), encoding="utf-8")
    written = preloaded.run("-m", "hf_efficient", "new-mechanism", WRITTEN, cwd=copy)
    assert written.returncode == 0 and (copy / f"hf_efficient/attention/{WRITTEN}.py").is_file(), written.stderr
    return copy


def test_lint_passes(tree):
    for command in (["check"], ["format", "--check"]):
        run = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "."], cwd=tree, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stdout + run.stderr


def test_a_mechanism_is_one_file_and_a_model_is_one_folder_and_one_entry(tree, bare):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = ["-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:xdist"]
    chosen = f"({' or '.join((*NEW, *TREE_READERS))}) and not ({' or '.join(SLOW)})"
    command += [*TESTS, *(f"--ignore={file}" for file in LONG), "-k", chosen]
    run = bare.run(*command, cwd=tree, env={**environment, "PYTHONPATH": str(tree)}, timeout=900)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    passed = [line for line in run.stdout.splitlines() if " PASSED" in line]
    for name in (*NEW, *TREE_READERS):
        assert any(name in line for line in passed), f"no test of {name}"
    for name in NEW:
        assert sum(bool(re.search(rf"(?<!sharp_){name}", line)) for line in passed) > 40, name
