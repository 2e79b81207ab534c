"""The benchmark and the demo: their arithmetic, their judgement, and that both run and write what they promise."""

import json
import math
import os
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import attention, attention_floors, timing
from benchmarks.floors import Figure
from benchmarks.memory import KEEP_MEMORY
from benchmarks.ours import MODULE, SDPA, kernel, mechanism, near_square
from benchmarks.peers import field, performer_pytorch_given
from benchmarks.tables import markdown_table, significant, text_table
from benchmarks.timing import Ratio, crossover, crossover_text, race, ratio
from benchmarks.workloads import TRAINING, Contender
from hf_efficient.attention import get_attention, list_attentions
from hf_efficient.experiments.timing import interleave

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("speedups", "at", "described"),
    [
        ([0.5, 2, 8], 2**7.5, "180"),  # half-way between 128 and 256 on the log-log plot
        ([0.25, 0.5, 4], 2 ** (8 + 1 / 3), "320"),
        ([0.5, 1, 2], 256, "260"),
        ([1.5, 2, 3], 128, "from the shortest on (128)"),
        ([1, 2, 3], 128, "from the shortest on (128)"),
        ([0.1, 0.2, 0.9], math.inf, "always slower up to 512"),
        ([0.5, 1.2, 0.9], math.inf, "slower at 512"),
        ([2, 0.5, 2], 2**8.5, "360"),  # from where on it stays ahead
    ],
)
def test_crossover(speedups, at, described):
    lengths = [128, 256, 512]
    assert crossover(lengths, speedups) == pytest.approx(at)
    assert crossover_text(lengths, speedups) == described


def test_crossover_of_one_length():
    assert crossover([64], [2.0]) == 64
    assert crossover([64], [0.5]) == math.inf


def test_ratio_is_the_median_of_the_rounds_ratios():
    """Not the ratio of the medians: a slow minute slows both."""
    found = ratio([2.0, 40.0, 6.0, 8.0, 10.0], [1.0, 10.0, 2.0, 2.0, 2.0])  # 2, 4, 3, 4, 5
    assert found == Ratio(median=4.0, low=3.0, high=4.0)
    assert str(found) == "4.00 [3.00 4.00]"
    assert ratio([3.0], [2.0]) == Ratio(1.5, 1.5, 1.5)


def test_significant_digits():
    assert [significant(x) for x in (0.0834, 0.5, 1.923, 28.44, 112.6)] == [
        "0.083",
        "0.50",
        "1.92",
        "28.4",
        "113",
    ]


def test_text_table_is_aligned():
    table = text_table(["name", "N=1", "N=22"], [["a", "1.00", "2"], ["longer", "–", "33.25"]])
    assert table.splitlines() == [
        "name     N=1   N=22",
        "------  ----  -----",
        "a       1.00      2",
        "longer     –  33.25",
    ]
    assert text_table(["a", "b"], [["1", "xyz"]], "><").splitlines()[-1] == "1  xyz"


def test_markdown_table():
    assert markdown_table(["a", "b"], [["1", "2"]]).splitlines() == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]


def test_near_square():
    assert [near_square(n) for n in (1, 12, 64, 128, 197)] == [(1, 1), (3, 4), (8, 8), (8, 16), (1, 197)]


def test_rounds_are_interleaved():
    order = []

    def work(name):  # as long by the processor's clock as by that on the wall
        order.append(name)
        end = time.process_time() + 0.03
        while time.process_time() < end:
            pass

    calls = {name: partial(work, name) for name in "abc"}
    seconds = interleave(calls, rounds=3)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"  # a warm-up, then every round starts with the next
    assert {len(taken) for taken in seconds.values()} == {3}


class Claim:
    """A workload that only says how long it takes."""

    def __init__(self, seconds):
        self.seconds = seconds

    def train(self):
        return self.seconds


def fail(message):
    def make(length, causal):
        raise RuntimeError(message)

    return make


def test_what_would_take_too_long_or_too_much_is_left_out(monkeypatch):
    monkeypatch.setattr(timing, "seconds_of", lambda call: call())
    fast = Contender("fast", "fast", lambda n, causal: Claim(n * 1e-3))
    slow = Contender("slow", "fast", lambda n, causal: Claim(n**2 * 1e-4))
    huge = Contender("huge", "fast", fail("can't allocate memory: you tried to allocate 1 bytes"))
    lost = Contender("lost", "slow", lambda n, causal: Claim(1e-3))
    rows, left_out = race([fast, slow, huge, lost], 1024, False, rounds=2, passes=[TRAINING], patience=20)
    assert [row["contender"] for row in rows] == ["fast"]
    reasons = {row["contender"]: row["reason"] for row in left_out}
    assert reasons == {"slow": "about 105 s a call", "huge": "out of memory", "lost": "slow is left out"}


def test_other_errors_are_not_hidden():
    with pytest.raises(RuntimeError, match="shapes"):
        race([Contender("broken", "broken", fail("shapes do not match"))], 1024, False, rounds=1)


@pytest.mark.parametrize("causal", [False, True])
def test_every_mechanism_takes_part(causal):
    contestants, _ = field(None, causal)
    able = {name for name in list_attentions() if get_attention(name).supports_causal or not causal}
    assert able <= {contender.name for contender in contestants}
    assert {contender.against for contender in contestants} == {SDPA, MODULE}
    assert {SDPA, MODULE} <= {contender.name for contender in contestants}


def test_a_missing_peer_is_named_with_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "performer_pytorch", None)
    contestants, absent = field(["performer"], True)
    assert [contender.name for contender in contestants] == [SDPA, "performer"]
    assert "not installed" in absent["performer-pytorch"]


def test_a_workload_yields_every_gradient():
    work = mechanism("linformer").make(32, False)
    gradients = work.train()
    assert len(gradients) == len(work.leaves) > 3
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert work.infer().grad_fn is None


def test_peers_compute_what_we_do():
    """Otherwise it would be no contest."""
    pytest.importorskip("performer_pytorch")
    ours, theirs = kernel(64), performer_pytorch_given(64)
    for causal in (False, True):
        assert torch.allclose(ours.make(100, causal).infer(), theirs.make(100, causal).infer(), atol=1e-4)


@pytest.mark.parametrize(
    ("value", "at_most", "verdict"),
    [
        (2.0, False, "pass"),
        (1.9, False, "FAIL"),
        (1.9, True, "pass"),
        (2.1, True, "FAIL"),
        (None, False, "not measured"),
    ],
)
def test_verdict(value, at_most, verdict):
    figure = Figure("speed", "x, N=1", 2, value, at_most=at_most)
    assert figure.verdict == verdict
    assert json.loads(json.dumps(figure.record()))["verdict"] == verdict


def test_a_recurrent_state_that_grows_is_seen(monkeypatch):
    monkeypatch.setattr(attention_floors, "TURNS", 2)
    growth, few, many = attention_floors.step_growth("linear_elu", few=4, many=40)
    assert few == many and growth.median > 0
    _, few, many = attention_floors.step_growth("softmax", few=4, many=40)
    assert many > few  # a KV cache


@pytest.fixture
def run(preloaded):
    def run(name, *arguments, **environment):
        """From the top of the clone, which alone says where the benchmarks are."""
        here = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment = {**here, "OMP_NUM_THREADS": "1", **environment}
        return preloaded.run("-m", f"benchmarks.{name}", *arguments, cwd=ROOT, env=environment)

    return run


def test_the_benchmark_runs(run, tmp_path):
    options = ["--quick", "--lengths", "16", "32", "--mechanisms", "linear_elu", "fnet", "--rounds", "2"]
    done = run("attention", *options, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "benchmark.json").read_text())
    cases = {(row["contender"], row["direction"], row["length"], row["pass"]) for row in results["rows"]}
    assert len(cases) == len(results["rows"]) == (4 + 2) * 2 * 2  # fnet can't be causal
    for row in results["rows"]:
        assert len(row["seconds"]) == 2
        assert all(math.isfinite(x) and x > 0 for x in [*row["seconds"], *row["speedup"].values()])
    command = " ".join(["python -m benchmarks.attention", *options, "--output", str(tmp_path)])
    assert results["environment"]["command"] == command
    assert results["environment"]["allocator"] == "keeps freed memory"  # in the process that it started anew
    assert (tmp_path / "benchmark.png").read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "benchmark.md").read_text()
    assert "| `linear_elu` | Katharopoulos 2020 |" in table and "| `fnet` † |" in table
    assert "bidirectional, forward+backward" in done.stdout and "linear_elu" in done.stdout
    assert "\r" not in done.stderr  # a bar would ruin a log


def test_the_mechanism_table_runs(run, tmp_path):
    options = ["--lengths", "16", "32", "--mechanisms", "kerformer", "axial"]
    done = run("mechanisms", *options, "--output", tmp_path, **KEEP_MEMORY)  # so it need not start anew
    assert done.returncode == 0, done.stderr
    mechanisms = json.loads((tmp_path / "mechanisms.json").read_text())["mechanisms"]
    assert list(mechanisms) == ["kerformer", "axial"]
    for row in mechanisms.values():
        assert row["error"] < 1e-10
        assert all(cost["milliseconds"] > 0 and cost["speedup"] > 0 for cost in row["lengths"].values())
        assert set(row["lengths"]) == {"16", "32"}
    assert mechanisms["kerformer"]["causal_error"] < 1e-10 and mechanisms["axial"]["causal_error"] is None
    assert (tmp_path / "mechanisms.png").read_bytes().startswith(b"\x89PNG")
    assert "kerformer" in (tmp_path / "mechanisms.md").read_text()
    assert str(tmp_path) in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mechanisms", "nonsense"], "invalid choice: 'nonsense'"),
        (["--lengths", "0"], "not a positive integer"),
        (["--quick", "--targets"], "give one of --quick and --targets"),
    ],
)
def test_bad_arguments_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        attention.main(arguments)
    assert message in capsys.readouterr().err
