"""Runs of equal budgets: rehearsed in turns, then trained for as many steps as fit, whatever the load."""

import json
import sys
from pathlib import Path

import pytest

from hf_efficient.cli import main
from hf_efficient.experiments import equal_budgets
from hf_efficient.experiments.equal_budgets import Pace, summarise, table
from hf_efficient.experiments.repetitions import ExperimentError, Variant, plan
from hf_efficient.training import budget
from hf_efficient.training.budget import Budget

RUN = """
task: image-classification
dataset: {name: digits, limit: 40, validation: 10}
model: {model_type: hugginggreen_vit, image_size: 8, patch_size: 4, hidden_size: 8, num_hidden_layers: 1,
        num_attention_heads: 1, intermediate_size: 8, attention: softmax, heuristic: none}
training: {per_device_train_batch_size: 8, eval_strategy: "no", budget: 1h}
energy: {cpu_watts: 10}
"""


def test_steps_are_the_budget_over_what_a_step_takes():
    pace = Pace(0.5, 10.0, "", 2)
    assert pace.steps(Budget(60, "seconds")) == 120
    assert pace.steps(Budget(60, "joules")) == 12
    assert pace.steps(Budget(0.1, "seconds")) == 1
    with pytest.raises(ExperimentError, match="codecarbon"):
        Pace(0.5, None, "", 2).steps(Budget(60, "joules"))


def test_two_runs_are_rehearsed_trained_and_compared(tmp_path, monkeypatch, capsys, preloaded):
    monkeypatch.setattr(sys, "executable", preloaded.python)
    monkeypatch.setattr(budget, "ROUND_SECONDS", 0.01)
    monkeypatch.setattr(equal_budgets, "ROUNDS", 1)
    (tmp_path / "small.yaml").write_text(RUN)
    words = [str(tmp_path / "small.yaml"), f"wide={tmp_path / 'small.yaml'},hidden_size=16", "--budget", "0.05s"]
    words += ["--seeds", "1", "--jobs", "2", "--output-dir", str(tmp_path / "out")]
    assert main(["compare", *words]) == 0
    record = json.loads((tmp_path / "out" / "comparison.json").read_text())
    paces = json.loads((tmp_path / "out" / "calibration.json").read_text())
    assert list(record["arms"]) == ["small", "wide"] and record["metric"] == "test_accuracy"
    for name, arm in record["arms"].items():
        results = json.loads((tmp_path / "out" / name / "seed_0" / "results.json").read_text())
        assert results["steps"] == arm["steps"] and results["threads"] == 1
        assert arm["steps"] == max(1, int(0.05 / paces[name]["pace"]["seconds_per_step"]))
        assert arm["scores"] == {"0": results["metrics"]["test_accuracy"]}
    assert "too few repetitions to tell" in capsys.readouterr().out

    monkeypatch.setattr(equal_budgets, "finish", None)  # nothing is left to run
    assert main(["compare", *words]) == 0


def repetitions(tmp_path: Path, scores: dict[str, list[float]]):
    variants = [Variant(name, tmp_path / "x.yaml", ("--max_steps", "7")) for name in scores]
    planned = plan(variants, range(3), tmp_path)
    for repetition in planned:
        value = scores[repetition.variant.name][repetition.seed]
        metrics = {"eval_accuracy": 0.0, "test_accuracy": value}
        repetition.folder.mkdir(parents=True)
        found = {"metric_for_best_model": "accuracy", "metrics": metrics}
        (repetition.folder / "results.json").write_text(json.dumps(found))
    return planned


def test_the_report_tells_differences_from_noise(tmp_path):
    scores = {"plain": [0.70, 0.71, 0.72], "better": [0.80, 0.816, 0.825], "same": [0.705, 0.70, 0.731]}
    paces = dict.fromkeys(scores, Pace(2.0, 10.0, "CPU estimated", 2))
    record = summarise(repetitions(tmp_path, scores), paces, "14s")
    assert record["arms"]["plain"]["joules"] == 140 and record["arms"]["plain"]["seconds"] == 14
    better, same = (next(x for x in record["differences"] if x["b"] == name) for name in ("better", "same"))
    assert better["adjusted"] < 0.05 < same["adjusted"] and better["effect"] == pytest.approx(0.1037, abs=1e-3)
    lines = table(record).splitlines()
    assert lines[2].startswith("better") and "+0.10" in lines[2] and "p = " in lines[2]


def test_a_run_without_a_readable_result_is_named(tmp_path):
    (repetition, *_) = planned = repetitions(tmp_path, {"plain": [0.7, 0.7, 0.7]})
    (repetition.folder / "results.json").write_text("{")
    with pytest.raises(ExperimentError, match=r"plain, seed 0 left no readable results\.json"):
        summarise(planned, {"plain": Pace(1.0, None, "", 1)}, "1s")


@pytest.mark.parametrize("wrong", [["--budget", "8"], ["--budget", "8min", "--seeds", "0"], []])
def test_wrong_arguments_are_refused(tmp_path, wrong, capsys):
    (tmp_path / "small.yaml").write_text(RUN)
    try:
        code = main(["compare", str(tmp_path / "small.yaml"), *wrong])
    except SystemExit as end:
        code = end.code
    assert code in (1, 2) and capsys.readouterr().err
