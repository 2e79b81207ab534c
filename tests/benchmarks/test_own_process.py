"""Contenders in processes of their own: their settings, their failures, their memory, and nothing left behind."""

import os
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.memory import KEEP_MEMORY, freed_memory, peak_memory
from benchmarks.own_process import OwnProcess
from benchmarks.workloads import FORWARD, TRAINING, Contender


def divide():
    1 / 0  # noqa: B018


def leave():
    os._exit(7)


def writer(path, third):
    """A call that notes where it ran and what glibc was told, twice, and then does something else."""
    told, calls = [os.environ.get(name, "nothing") for name in KEEP_MEMORY], []

    def call():
        calls.append(None)
        if len(calls) == 3:
            third()
        with open(path, "a") as file:
            print(os.getpid(), *told, file=file)

    return call


@pytest.mark.parametrize(
    ("keep", "third", "reason"), [(False, divide, "ZeroDivisionError"), (True, leave, "exit code 7")]
)
def test_runs_there_with_its_own_settings_and_tells_failures(tmp_path, monkeypatch, keep, third, reason):
    monkeypatch.setenv(next(iter(KEEP_MEMORY)), "12345")
    before, path = dict(os.environ), tmp_path / "calls"
    with OwnProcess(partial(writer, path, third), keep) as call:
        call()
        call()
        with pytest.raises(RuntimeError, match=reason):
            call()
    assert dict(os.environ) == before
    lines = [line.split() for line in path.read_text().splitlines()]
    assert len(lines) == 2 and lines[0] == lines[1]
    assert int(lines[0][0]) != os.getpid()
    assert lines[0][1:] == (list(KEEP_MEMORY.values()) if keep else ["nothing"] * len(KEEP_MEMORY))
    assert not call.process.is_alive()


class Model:
    """100 MB, however long its inputs are; 50 more in a forward pass, and 100 with the backward pass."""

    def __init__(self, length, causal):
        self.weights = megabytes(100)

    def infer(self):
        megabytes(50)

    def train(self):
        megabytes(100)


def megabytes(number):
    return [torch.ones(2**18) for _ in range(number)]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_peak_memory_is_that_of_the_pass():
    """What the warm-up has freed, here 200 MB, is no idle memory."""
    with freed_memory(keep=True):
        peak = peak_memory(Contender("model", "model", Model), 64, True)
    assert 150 <= peak[FORWARD] / 2**20 < 160 and 200 <= peak[TRAINING] / 2**20 < 210
