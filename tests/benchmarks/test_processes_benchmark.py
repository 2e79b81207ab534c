"""Two processes against one, in the smallest sizes: it runs, and moves the bytes that the arithmetic says."""

import json
from pathlib import Path

import pytest
from preloaded import unused_port

from benchmarks.processes import ARITHMETIC, KINDS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_runs(preloaded, tmp_path):
    smallest = ("--rounds", 1, "--steps", 1, "--batch", 2, "--port", unused_port())
    done = preloaded.run("-m", "benchmarks.processes", *smallest, "--output", tmp_path, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "processes.json").read_text())
    for kind in KINDS:
        time_taken, cpu, sent = (found[kind][name] for name in ("time", "cpu", "bytes_per_parameter"))
        assert time_taken[0] > 0 and cpu[0] > 0
        # Nothing is counted where the tests may not make namespaces; others may send something, too.
        assert sent is None or 0.98 * ARITHMETIC[kind] < sent
        assert kind in done.stdout
