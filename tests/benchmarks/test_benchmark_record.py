"""What a run says about itself, and how the benchmarks are found."""

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks import BENCHMARKS, timing
from benchmarks.floors import Figure
from benchmarks.record import commit, describe_run, run_record
from benchmarks.reports import write_figures

ROOT = Path(__file__).parents[2]


def git(folder, *arguments):
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_a_run_says_what_its_figures_depend_on():
    run = run_record("models", ["--rounds", "2", "--output", "a folder"])
    assert run["command"] == "python -m benchmarks.models --rounds 2 --output 'a folder'"
    assert run["threads"] == torch.get_num_threads() and run["torch"] == torch.__version__
    assert run["python"] == sys.version.split()[0]
    assert {"date", "commit", "cpu", "cores", "hf_efficient", "transformers", "performer-pytorch"} <= run.keys()
    assert run["date"] in describe_run(run) and f"commit {run['commit']}" in describe_run(run)


def test_a_commit_with_changes_is_dirty(tmp_path):
    assert commit(tmp_path / "nowhere") is None
    git(tmp_path, "init")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "one")
    git(tmp_path, "tag", "-a", "v1", "-m", "one")  # a tag could be moved
    clean = commit(tmp_path)
    assert len(clean) == 40
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == f"{clean}-dirty"


def test_figures_are_written_with_their_run(tmp_path, capsys):
    run, figure = run_record("models", []), Figure("speed", "of x", 2.0, 1.5, note="n")
    write_figures("models", run, [figure], tmp_path)
    results = json.loads((tmp_path / "models.json").read_text())
    assert results["environment"] == run
    assert [Figure.from_record(record) for record in results["figures"]] == [figure]
    assert "| speed | of x | 1.50 | ≥ 2 | FAIL | n |" in (tmp_path / "models.md").read_text()
    assert str(tmp_path / "models.json") in capsys.readouterr().out


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_help(name, capsys):
    assert find_spec(BENCHMARKS[name].module).origin == str(ROOT / "benchmarks" / f"{name}.py")
    with pytest.raises(SystemExit) as ended:
        BENCHMARKS[name].main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"python -m benchmarks.{name}" in shown and "top folder of a clone" in shown


def test_the_list_of_benchmarks_is_light():
    """The command line reads it to show its help."""
    code = "import sys, benchmarks; print(*{'torch', 'hf_efficient'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0 and not run.stdout.strip(), run.stdout + run.stderr


def test_one_thread_counts_processor_time(monkeypatch):
    """Waiting takes none of it."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert timing.seconds_of(lambda: time.sleep(0.1)) < 0.05
    assert "1 thread (processor time)" in describe_run(run_record("models", []))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert timing.seconds_of(lambda: time.sleep(0.1)) >= 0.1
    assert "2 threads" in describe_run(run_record("models", []))
