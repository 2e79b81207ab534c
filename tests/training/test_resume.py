"""A run that is killed and started again ends as the one that wasn't, bit by bit."""

import os
import signal
from pathlib import Path

import pytest
import torch
from runs import STEPS_PER_EPOCH, KillAt, Killed, assert_same, make_trainer, outcome
from transformers import TrainerCallback

from hf_efficient.training.checkpoints import list_checkpoints, step_of
from hf_efficient.training.trainer import EpochSampler

pytestmark = pytest.mark.usefixtures("quickly")
SETTINGS = {
    "steps": {},
    "steps, no average": {"ema_decay": 0.0, "load_best_model_at_end": False},
    "epochs": {"eval_strategy": "epoch", "logging_strategy": "epoch"},
    "epochs, saved by steps": {"eval_strategy": "epoch", "save_strategy": "steps", "save_steps": 5},
    "plateau": {
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5},
        "metric_for_best_model": "accuracy",
        "eval_on_start": True,
    },
    "patience": {"eval_steps": 2, "early_stopping_patience": 2, "early_stopping_threshold": 9.0},
    "accumulated": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "whole_batches": False},
    "best only": {"save_strategy": "best", "eval_steps": 5, "metric_for_best_model": "loss"},
    "ends within an epoch": {"max_steps": 13, "eval_strategy": "epoch", "save_strategy": "steps", "save_steps": 4},
}


def run(folder, *callbacks, **settings):
    trainer = make_trainer(folder, *callbacks, **settings)
    trainer.train(resume_from_checkpoint=True)
    return outcome(trainer), (Path(folder) / "history.csv").read_bytes()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The outcome of each setting, computed once."""
    known = {}

    def find(name):
        if name not in known:
            torch.manual_seed(1)  # what came before must not matter
            known[name] = run(tmp_path_factory.mktemp("uninterrupted"), **SETTINGS[name])
        return known[name]

    return find


def assert_resumes(folder, expected, kills, **settings):
    for kill in kills:
        with pytest.raises(Killed):
            run(folder, kill, **settings)
    found, csv = run(folder, **settings)
    assert_same(found, expected[0])
    assert csv == expected[1]


@pytest.mark.parametrize("step", [2, 7, 8, 10, 14])
def test_killed_in_a_step(tmp_path, uninterrupted, step):
    assert_resumes(tmp_path, uninterrupted("steps"), [KillAt(step)])


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "steps"])
def test_killed_under_other_settings(tmp_path, uninterrupted, name):
    steps = uninterrupted(name)[0]["step"]
    kills = [KillAt(max(1, steps // 2)), KillAt(steps - 1)]
    assert_resumes(tmp_path, uninterrupted(name), kills, **SETTINGS[name])


@pytest.mark.parametrize("name", ["steps", "epochs", "epochs, saved by steps", "ends within an epoch", "patience"])
def test_killed_right_after_its_last_checkpoint(tmp_path, uninterrupted, name):
    """Where transformers would take one more step, or leave out the last evaluation."""
    expected = uninterrupted(name)
    run(tmp_path, **SETTINGS[name])
    last = list_checkpoints(tmp_path)[-1]
    assert step_of(last) == expected[0]["step"]
    (tmp_path / "history.csv").unlink()
    found, csv = run(tmp_path, **SETTINGS[name])
    assert_same(found, expected[0])
    assert csv == expected[1]


@pytest.mark.parametrize("step", [5, 10])
def test_killed_between_a_step_and_the_end_of_its_epoch(tmp_path, uninterrupted, step):
    """save_steps falls on the last step of an epoch, whose evaluation is still to come."""
    name = "epochs, saved by steps"
    assert_resumes(tmp_path, uninterrupted(name), [KillAt(step), KillAt(step + 1, "beginning")], **SETTINGS[name])


def test_killed_again_and_again(tmp_path, uninterrupted):
    kills = [KillAt(step, when) for step, when in ((4, "taken"), (4, "beginning"), (7, "taken"), (9, "saved"))]
    assert_resumes(tmp_path, uninterrupted("steps"), kills)


def test_early_stopping_had_its_effect(uninterrupted):
    assert uninterrupted("patience")[0]["step"] == 6


def test_patience_and_selection_are_at_work(uninterrupted):
    """Else the tests above would show little."""
    weights = uninterrupted("steps")[0]["weights"]
    assert weights["vit.selector.epoch"] >= 1 and weights["vit.selector.step"] > 0


class Signal(TrainerCallback):
    def __init__(self, step, *numbers):
        self.step, self.numbers = step, numbers

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            for number in self.numbers:
                os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("name", "step", "number", "end"),
    [
        ("steps", 6, signal.SIGTERM, SystemExit),
        ("epochs", 6, signal.SIGINT, KeyboardInterrupt),
        ("epochs", 4, signal.SIGTERM, SystemExit),
        ("ends within an epoch", 12, signal.SIGINT, KeyboardInterrupt),
    ],
)
def test_a_signal_saves_and_ends(tmp_path, uninterrupted, capsys, name, step, number, end):
    before = signal.getsignal(number)
    with pytest.raises(end) as exit:
        run(tmp_path, Signal(step, number), **SETTINGS[name])
    assert end is KeyboardInterrupt or exit.value.code == 143
    assert signal.getsignal(number) is before
    assert step_of(list_checkpoints(tmp_path)[-1]) == step + 1
    assert f"{number.name}: saving a checkpoint" in capsys.readouterr().err
    assert_resumes(tmp_path, uninterrupted(name), [], **SETTINGS[name])


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Signal(1, signal.SIGINT, signal.SIGINT))
    assert not list_checkpoints(tmp_path)


def test_training_goes_on_where_more_epochs_are_asked_for(tmp_path):
    constant = {"lr_scheduler_type": "constant"}
    short, _ = run(tmp_path / "a", num_train_epochs=1, load_best_model_at_end=False, **constant)
    assert short["step"] == STEPS_PER_EPOCH
    found, csv = run(tmp_path / "a", num_train_epochs=2, load_best_model_at_end=False, **constant)
    assert found["step"] == 2 * STEPS_PER_EPOCH


def test_the_order_of_data_is_a_function_of_seed_and_epoch():
    orders = {}
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1)):
        sampler = EpochSampler(20, seed, batch=8)
        sampler.set_epoch(epoch)
        orders[seed, epoch] = tuple(sampler)
        torch.manual_seed(5)
        assert tuple(sampler) == orders[seed, epoch]
        assert len(sampler) == 16 == len(set(orders[seed, epoch]))
    assert len(set(orders.values())) == 4
    assert len(list(EpochSampler(5, 0, batch=8))) == 5  # rather few than none
