"""A budget becomes a number of steps, once; a rehearsal leaves no trace."""

import json
import random

import numpy as np
import pytest
import torch
import yaml
from language_runs import make as make_language_trainer
from runs import KillAt, Killed, assert_same, make_trainer, outcome

from hf_efficient.training import budget
from hf_efficient.training.arguments import EfficientTrainingArguments
from hf_efficient.training.budget import Budget, Plan, Rehearsal
from hf_efficient.training.errors import RunError

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(budget, "ROUND_SECONDS", 0.01)


@pytest.mark.parametrize(
    ("text", "amount", "kind"),
    [
        ("90s", 90, "seconds"),
        ("8min", 480, "seconds"),
        (" 1.5 h", 5400, "seconds"),
        ("500J", 500, "joules"),
        ("20kJ", 20_000, "joules"),
        (".5Wh", 1800, "joules"),
        ("0.1kWh", 360_000, "joules"),
    ],
)
def test_budgets_have_units(text, amount, kind):
    assert Budget.parse(text) == Budget(pytest.approx(amount), kind)


@pytest.mark.parametrize("text", ["8", "min", "8 hours", "-1s", "0min", "1e3s", 8])
def test_what_is_no_budget_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match="must be a number above 0 with one of s, min, h"):
        EfficientTrainingArguments(str(tmp_path), budget=text)


def test_a_budget_and_steps_exclude_one_another(tmp_path):
    with pytest.raises(ValueError, match="give one of them"):
        EfficientTrainingArguments(str(tmp_path), budget="1min", max_steps=5)


def test_the_number_of_steps_is_the_budget_over_a_step(tmp_path):
    trainer = make_trainer(tmp_path)
    with Rehearsal(trainer) as rehearsal:
        rehearsal.play(3)
        (part,) = rehearsal.parts
        part.seconds = [0.1, 0.2, 0.9]  # one round was disturbed
        assert rehearsal.seconds_per_step() == 0.2
        part.seconds *= 0
        plan = rehearsal.plan("2s")
    seconds = plan.seconds / plan.steps
    assert 0 < seconds < 0.5 and plan.steps == pytest.approx(2 / seconds, abs=1.5)
    assert plan.joules is None and plan.threads == torch.get_num_threads()


def test_parts_of_a_run_count_by_their_share(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.schedule_points = lambda: [0, 0.75]
    with Rehearsal(trainer) as rehearsal:
        assert [(part.begin, part.share) for part in rehearsal.parts] == [(0, 0.75), (0.75, 0.25)]
        rehearsal.parts[0].seconds, rehearsal.parts[1].seconds = [1.0], [3.0]
        assert rehearsal.seconds_per_step() == 1.5


def numbers() -> tuple:
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_a_rehearsal_leaves_no_trace(tmp_path):
    plain, rehearsed = make_trainer(tmp_path / "plain"), make_trainer(tmp_path / "rehearsed")
    for trainer in (plain, rehearsed):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        if trainer is rehearsed:
            with Rehearsal(trainer) as rehearsal:
                rehearsal.play(2)
        trainer.train()
    assert_same(outcome(rehearsed), outcome(plain))


def test_nor_does_it_in_memory(tmp_path):
    trainer = make_language_trainer(tmp_path)
    before = {name: x.clone() for name, x in trainer.model.state_dict().items()}
    with Rehearsal(trainer) as rehearsal:
        rehearsal.play()
    assert not trainer.memories and not trainer.totals.any()
    assert_same(dict(trainer.model.state_dict()), before)


def test_a_resumed_run_keeps_its_plan(tmp_path, monkeypatch):
    planned = Plan("1min", 9, 60.0)
    monkeypatch.setattr(Rehearsal, "plan", lambda self, text: planned)
    whole = make_trainer(tmp_path / "whole", budget="1min")
    whole.train()
    assert whole.state.global_step == 9
    with pytest.raises(Killed):
        make_trainer(tmp_path / "killed", KillAt(7), budget="1min").train()
    (tmp_path / "killed" / "budget.json").unlink()  # the checkpoint has it too
    monkeypatch.setattr(Rehearsal, "plan", lambda self, text: Plan("1min", 100, 60.0))  # a slower machine, say
    resumed = make_trainer(tmp_path / "killed", budget="1min")
    resumed.train(resume_from_checkpoint=True)
    assert_same(outcome(resumed), outcome(whole))
    assert json.loads((tmp_path / "killed" / "budget.json").read_text())["steps"] == 9


def test_another_budget_is_planned_anew_before_there_are_checkpoints(tmp_path, monkeypatch):
    Plan("1min", 9, 60.0).save(tmp_path)
    monkeypatch.setattr(Rehearsal, "plan", lambda self, text: Plan(text, 3, 1.0))
    trainer = make_trainer(tmp_path, budget="1s")
    trainer.train()
    assert trainer.state.global_step == 3


def test_a_damaged_plan_is_named(tmp_path):
    (tmp_path / "budget.json").write_text("{")
    with pytest.raises(RunError, match=r"budget\.json can't be read"):
        make_trainer(tmp_path, budget="1s").train()


def test_a_budget_of_energy(tmp_path):
    pytest.importorskip("codecarbon")
    trainer = make_trainer(tmp_path)
    trainer.energy_options = {"cpu_watts": 10.0, "interval": 0.1}
    with Rehearsal(trainer) as rehearsal:
        plan = rehearsal.plan("5J")
    assert plan.steps >= 1 and plan.joules > 0 and "CPU estimated from load" in plan.method


@pytest.mark.slow
def test_two_processes_have_one_plan(preloaded, tmp_path):
    """They take the same steps in the rehearsal: one that took more would wait for the other for ever."""
    run = {
        "task": "image-classification",
        "dataset": {"name": "digits", "limit": 100, "evaluation_limit": 20},
        "model": {"model_type": "kerformer_vit", "image_size": 8, "patch_size": 4, **SMALL},
        "training": {"output_dir": str(tmp_path / "run"), "budget": "1s", "per_device_train_batch_size": 8},
        "energy": {"enabled": False},
    }
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(run))
    for done in preloaded.run_ranks(2, "-m", "hf_efficient", "train", file):
        assert done.returncode == 0, done.stderr[-3000:]
    plan = Plan.load(tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["steps"] == plan.steps == results["budget"]["steps"] and results["processes"] == 2
