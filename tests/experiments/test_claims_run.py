"""Running claims: each on tiny data, and on from where it was stopped."""

import json
import time
from dataclasses import replace

import pytest

from hf_efficient.cli import main
from hf_efficient.experiments.claims import NAMES, claim, run, timed, trained
from hf_efficient.experiments.claims.base import Claim, Options, Statement
from hf_efficient.experiments.claims.converted_encoder import Converted
from hf_efficient.experiments.claims.record import Record
from hf_efficient.experiments.claims.timed import Case, Timed
from hf_efficient.experiments.claims.trained import Trained, one
from hf_efficient.experiments.claims.trained import run as stage
from hf_efficient.experiments.claims.verdicts import decide
from hf_efficient.experiments.repetitions import ExperimentError

RUN = """
task: image-classification
dataset: {name: digits, limit: 40, validation: 10}
model: {model_type: hugginggreen_vit, image_size: 8, patch_size: 4, hidden_size: 8, num_hidden_layers: 1,
        num_attention_heads: 1, intermediate_size: 8, attention: softmax, heuristic: none}
training: {per_device_train_batch_size: 8, eval_strategy: steps, eval_steps: 0.5}
"""
# Of every part only these arms, so that the tests of all claims take a minute: of each kind at least one.
FEW = {
    "probabilistic_attention": ("softmax", "gaussian_mixture"),
    "patch_selection": ("none", "25 %"),
    "training_stages": ("scratch", "contrastive_frozen"),
    "sparsity_and_routing": ("plain", "tokens"),
    "converted_encoder": ("softmax", "kerformer", "identity_k"),
    "long_range_arena": ("kerformer",),
    "kerformer_vit": ("softmax", "kerformer"),
    "separable_attention": ("separable", "0.75"),
    "compressive_performer": ("autoencoder",),
}
PARTS = {
    **{"probabilistic_attention": (0,), "patch_selection": (3,), "long_range_arena": (0, 2), "kerformer_vit": (0,)},
    **{"separable_attention": (1, 2, 3), "compressive_performer": (0,)},
}


def thinned(name: str) -> Claim:
    found = claim(name)
    parts = [found.parts[number] for number in PARTS.get(name, range(len(found.parts)))]
    for number, part in enumerate(parts):
        if isinstance(part, Trained | Converted):
            parts[number] = replace(part, arms={arm: x for arm, x in part.arms.items() if arm in FEW[name]})
    return replace(found, parts=tuple(parts))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_quick(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "find_claim", thinned)
    assert main(["claims", "run", name, "--quick", "--record", "quick.json"]) == 0
    found = json.loads((tmp_path / "quick.json").read_text())
    assert found["quick"] and found["claim"] == name and found["commits"] and found["verdict"] != "holds"
    for label, arm in found["arms"].items():
        assert arm["samples"], label
        assert all(isinstance(value, int | float) for x in arm["samples"].values() for value in x.values())
    assert "decides nothing" in capsys.readouterr().out
    assert not list(tmp_path.glob("docs*"))
    monkeypatch.setattr(trained, "train_here", None)  # nothing is left to run
    assert main(["claims", "run", name, "--quick", "--record", "quick.json"]) == 0
    assert json.loads((tmp_path / "quick.json").read_text())["arms"] == found["arms"]


@pytest.fixture
def part(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(RUN)
    arms = one(a=stage(str(file)), b=stage(str(file), num_hidden_layers=2), c=stage(str(file), hidden_size=16))
    return Trained("", arms, "steps", "1min", quick=("--dataset.limit", "40"))


def test_what_was_stopped_goes_on(part, tmp_path, monkeypatch):
    options, file = Options(quick=True, folder=tmp_path / "runs"), tmp_path / "record.json"
    done, train_here = [], trained.train_here

    def killed_at_the_second(repetition):
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(repetition.variant.name)
        train_here(repetition)

    monkeypatch.setattr(trained, "train_here", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        part.run(Record.load(file, "x", True), options)
    before = json.loads(file.read_text())["arms"]
    assert done == ["a"] and set(before["a"]["samples"]["accuracy"]) == {"0"} and not before["b"]["samples"]
    assert before["a"]["steps"] == before["b"]["steps"] == before["c"]["steps"]  # equal, and fixed by then

    monkeypatch.setattr(
        trained, "train_here", lambda repetition: (done.append(repetition.variant.name), train_here(repetition))
    )
    monkeypatch.setattr(trained, "rehearse", None)
    part.run(Record.load(file, "x", True), options)
    after = json.loads(file.read_text())["arms"]
    assert done == ["a", "b", "c"] and after["a"] == before["a"] and after["c"]["samples"]["accuracy"]
    assert after["a"]["command"].startswith("hf-efficient train") and "--max_steps" in after["a"]["command"]
    with pytest.raises(ExperimentError, match=r"a was run with another config or other settings"):
        replace(part, quick=()).run(Record.load(file, "x", True), options)
    with pytest.raises(ExperimentError, match=r"budget='2kJ' must be a time"):
        part.cost(replace(options, budget="2kJ"))
    with pytest.raises(ExperimentError, match=r"is of runs of 0.1s, not of 2min"):
        part.run(Record.load(file, "x", True), replace(options, budget="2min"))


def test_a_run_is_a_command_of_its_own(part, tmp_path, preloaded, monkeypatch):
    """As claims are run when they are not quick: in processes, two at a time."""
    monkeypatch.setattr("sys.executable", preloaded.python)
    rehearse = trained.rehearse
    monkeypatch.setattr(trained, "rehearse", lambda words, folder: rehearse(words, folder, rounds=1, seconds=0.01))
    record = Record(tmp_path / "record.json", "x")
    options = Options(budget="0.05s", seeds=1, folder=tmp_path / "runs", jobs=2)
    part = replace(part, arms={name: part.arms[name] for name in "ab"})
    part.run(record, options)
    arm = record.arms["b"]
    assert arm["samples"]["peak_memory"]["0"] > 2**26 and arm["parameters"] > 0 and arm["curves"]["0"]
    steps = json.loads(next((tmp_path / "runs").glob("x/0.05s/b/seed_0/results.json")).read_text())["steps"]
    assert arm["steps"] == [steps]


def test_what_is_timed_is_paired_and_kept(tmp_path, monkeypatch):
    asked = []

    def sleeper(seconds):
        def make():
            asked.append(seconds)
            return lambda: time.sleep(seconds)

        return make

    def out_of_memory():
        raise RuntimeError("not enough memory: you tried to allocate 9 GB")

    monkeypatch.setattr("hf_efficient.experiments.timing.clock", time.perf_counter)
    arms = {"fast": sleeper(0.003), "slow": sleeper(0.006), "huge": out_of_memory}
    slow = Case("long", {"slow": sleeper(0.006)}, smaller=({"slow": sleeper(0.006)}, 1e6))
    part = Timed("", lambda quick: [Case("N=1", arms), slow], arms=3, minutes=0.0, rounds=4)
    record = Record(tmp_path / "record.json", "x")
    part.run(record, Options())
    faster = Statement("fast is faster", "seconds, N=1", "slow", "fast", more=False, ratio=True)
    found = record.to_json()["arms"]
    assert set(found["fast"]["samples"]["seconds, N=1"]) == {"0", "1", "2", "3"}
    assert found["huge"]["left_out"] == {"seconds, N=1": timed.MORE_THAN_THERE_IS}
    assert found["slow"]["left_out"]["seconds, long"].endswith("s a call")
    assert decide(faster, found).verdict in ("holds", "undecided")  # seconds of a busy machine; test_claims decides
    asked.clear()
    part.run(Record.load(record.file, "x"), Options())
    assert not asked
