"""Contenders in processes of their own: their settings, their failures, their memory, and nothing left behind."""

import os
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.memory import KEEP_MEMORY, freed_memory, peak_memory
from benchmarks.own_process import OwnProcess
from benchmarks.workloads import TRAINING, Contender


def writer(path):
    """A call that notes where it ran and what glibc was told."""
    told = [os.environ.get(name, "nothing") for name in KEEP_MEMORY]

    def call():
        with open(path, "a") as file:
            print(os.getpid(), *told, file=file)

    return call


def divider():
    return lambda: 1 / 0


def quitter():
    return lambda: os._exit(7)


@pytest.mark.parametrize("keep", [False, True])
def test_runs_there_with_its_own_settings(tmp_path, monkeypatch, keep):
    monkeypatch.setenv(next(iter(KEEP_MEMORY)), "12345")
    before, path = dict(os.environ), tmp_path / "calls"
    with OwnProcess(partial(writer, path), keep) as call:
        call()
        call()
    assert dict(os.environ) == before
    lines = [line.split() for line in path.read_text().splitlines()]
    assert len(lines) == 2 and lines[0] == lines[1]
    assert int(lines[0][0]) != os.getpid()
    assert lines[0][1:] == (list(KEEP_MEMORY.values()) if keep else ["nothing"] * len(KEEP_MEMORY))
    assert not call.process.is_alive()


@pytest.mark.parametrize(("make", "reason"), [(divider, "ZeroDivisionError"), (quitter, "exit code 7")])
def test_failures_are_told(make, reason):
    with OwnProcess(make, False) as call, pytest.raises(RuntimeError, match=reason):
        call()


class Model:
    """100 MB, however long its inputs are."""

    def __init__(self, length, causal):
        self.weights = [torch.ones(2**18) for _ in range(100)]

    def infer(self):
        pass

    train = infer


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("keep", [False, True])
def test_what_the_warm_up_has_freed_is_no_idle_memory(keep):
    with freed_memory(keep):
        peak = peak_memory(Contender("model", "model", Model), 64, True)
    assert peak[TRAINING] > 100 * 2**20
