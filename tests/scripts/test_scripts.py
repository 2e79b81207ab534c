"""Scripts are entry points: each starts, says what it does, and stands alone."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
OURS = [script for script in SCRIPTS if "hf_efficient.cli" in script.read_text()]


@pytest.mark.parametrize("script", OURS, ids=lambda script: script.stem)
def test_help(preloaded, script):
    done = preloaded.run(script, "--help")
    assert done.returncode == 0 and len(done.stdout) > 200, done.stderr


@pytest.mark.parametrize("script", OURS, ids=lambda script: script.stem)
def test_none_imports_another(script):
    names = {other.stem for other in SCRIPTS}
    for node in ast.walk(ast.parse(script.read_text())):
        imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        imported += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert not names & {name.partition(".")[0] for name in imported}


def test_a_run_of_another_task_is_refused(preloaded):
    done = preloaded.run(ROOT / "scripts/train_object_detector.py", "configs/../digits_hugginggreen_vit")
    assert done.returncode == 1 and "Did you mean digits_hugginggreen_vit?" in done.stderr
    done = preloaded.run(ROOT / "scripts/train_object_detector.py", "digits_hugginggreen_vit")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "is a run of image-classification, not of object-detection; `hf-efficient train` takes any" in done.stderr
