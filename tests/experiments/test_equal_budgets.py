"""Runs of equal budgets: rehearsed in turns, then trained for as many steps as fit, whatever the load."""

import json
import shutil
import sys
from dataclasses import replace

import pytest
from PIL import Image

from hf_efficient.cli import main
from hf_efficient.experiments import equal_budgets
from hf_efficient.experiments.budget_record import Arm, Pace, Record, score
from hf_efficient.experiments.equal_budgets import table
from hf_efficient.experiments.repetitions import ExperimentError, Variant, plan
from hf_efficient.training import budget
from hf_efficient.training.budget import Budget

RUN = """
task: image-classification
dataset: {name: digits, limit: 40, validation: 10}
model: {model_type: hugginggreen_vit, image_size: 8, patch_size: 4, hidden_size: 8, num_hidden_layers: 1,
        num_attention_heads: 1, intermediate_size: 8, attention: softmax, heuristic: none}
training: {per_device_train_batch_size: 8, eval_strategy: steps, eval_steps: 0.5, budget: 1h}
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
    assert list(record["arms"]) == ["small", "wide"] and record["metric"] == "test_accuracy"
    for name, arm in record["arms"].items():
        results = json.loads((tmp_path / "out" / name / "seed_0" / "results.json").read_text())
        assert results["steps"] == arm["steps"] and results["threads"] == 1
        assert arm["steps"] == max(1, int(0.05 / arm["pace"]["seconds_per_step"]))
        assert arm["scores"] == {"0": results["metrics"]["test_accuracy"]}
        assert arm["metrics"]["0"]["test_loss"] == results["metrics"]["test_loss"]
        assert arm["curves"]["0"][-1] == [arm["steps"], results["metrics"]["eval_accuracy"]]
    with Image.open(tmp_path / "out" / "comparison.png") as picture:
        assert picture.width > 400
    assert "too few repetitions to tell" in capsys.readouterr().out

    with monkeypatch.context() as patch:
        patch.setattr(equal_budgets, "finish", None)  # nothing is left to run, nor to rehearse
        patch.setattr(equal_budgets, "rehearse", None)
        assert main(["compare", *words]) == 0
        shutil.rmtree(tmp_path / "out" / "small")  # the record is enough
        assert main(["compare", *words]) == 0

    flat = f"flat={tmp_path / 'small.yaml'},num_hidden_layers=2"
    elsewhere = [
        flat,
        *words[2:-1],
        str(tmp_path / "elsewhere"),
        "--record",
        str(tmp_path / "out" / "comparison.json"),
    ]
    half = replace_pace(record["arms"]["small"], 0.5)  # a machine that is twice as fast
    monkeypatch.setattr(equal_budgets, "rehearse", lambda runs, folder: dict.fromkeys(runs, half))
    assert main(["compare", *elsewhere]) == 0
    joined = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert list(joined["arms"]) == ["small", "wide", "flat"] and len(joined["commands"]) == len({*joined["commands"]})
    assert joined["arms"]["flat"]["steps"] == record["arms"]["small"]["steps"]  # seconds of the first machine
    assert joined["arms"]["wide"] == record["arms"]["wide"]

    (tmp_path / "small.yaml").write_text(RUN + "# changed")
    assert main(["compare", *words]) == 1 and "another config" in capsys.readouterr().err


def replace_pace(arm: dict, factor: float) -> Pace:
    pace = Pace(**arm["pace"])
    return replace(pace, seconds_per_step=factor * pace.seconds_per_step)


def test_the_report_tells_differences_from_noise():
    scores = {"plain": [0.70, 0.71, 0.72], "better": [0.80, 0.816, 0.825], "same": [0.705, 0.70, 0.731]}
    record = Record("14s", "test_accuracy")
    for name, values in scores.items():
        record.add(name, Arm([name], "", scores=dict(enumerate(values))), Pace(2.0, 10.0, "CPU estimated", 2))
    record.add("not yet", Arm(["x"], ""), Pace(1.0, None, "", 1))
    found = record.to_json()
    assert found["arms"]["plain"]["joules"] == 140 and found["arms"]["plain"]["seconds"] == 14
    better, same = (next(x for x in found["differences"] if x["b"] == name) for name in ("better", "same"))
    assert better["adjusted"] < 0.05 < same["adjusted"] and better["effect"] == pytest.approx(0.1037, abs=1e-3)
    lines = table(found).splitlines()
    assert lines[2].startswith("better") and "+0.10" in lines[2] and "p = " in lines[2] and "not run" in lines[4]


def test_a_record_is_of_one_budget_and_one_metric(tmp_path):
    record = Record("14s", "test_accuracy")
    record.add(
        "plain", Arm(["plain"], "", scores={3: 0.5}, metrics={3: {"test_accuracy": 0.5}}), Pace(2.0, None, "", 1)
    )
    record.save(tmp_path / "record.json")
    assert Record.load(tmp_path / "record.json", "14s") == record
    with pytest.raises(ExperimentError, match="of 14s, not of 15s"):
        Record.load(tmp_path / "record.json", "15s")
    (repetition,) = plan([Variant("plain", tmp_path / "x.yaml")], [0], tmp_path)
    with pytest.raises(ExperimentError, match="test_accuracy and by test_loss"):
        record.add_score(repetition, "test_loss", {"test_loss": 1.0})
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(ExperimentError, match=r"record\.json is no record of a comparison"):
        Record.load(tmp_path / "record.json", "14s")


def test_a_run_without_a_readable_result_is_named(tmp_path):
    (repetition,) = plan([Variant("plain", tmp_path / "x.yaml")], [0], tmp_path)
    repetition.folder.mkdir(parents=True)
    (repetition.folder / "results.json").write_text("{")
    with pytest.raises(ExperimentError, match=r"plain, seed 0 left no readable results\.json"):
        score(repetition)


@pytest.mark.parametrize("wrong", [["--budget", "8"], ["--budget", "8min", "--seeds", "0"], []])
def test_wrong_arguments_are_refused(tmp_path, wrong, capsys):
    (tmp_path / "small.yaml").write_text(RUN)
    try:
        code = main(["compare", str(tmp_path / "small.yaml"), *wrong])
    except SystemExit as end:
        code = end.code
    assert code in (1, 2) and capsys.readouterr().err
