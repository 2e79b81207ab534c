import json
import signal
import sys
import time
from pathlib import Path

import energy_run
import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from hf_efficient.energy import EnergyReport
from hf_efficient.energy.tracker import TrackerUnavailable
from hf_efficient.training.energy_callback import EnergyCallback, energy_report

sys.path.insert(0, str(Path(__file__).parents[1] / "energy"))
from energy_cases import Clock, FakeTracker

WATTS = 15.0  # of the FakeTracker
TRAINED, EVALUATED, BATCH = 20, 6, 8  # images: 3 steps per epoch, the last with 4 images; 1 batch to evaluate


class OneSecondModel(nn.Module):
    """Takes a second of the fake clock for each batch."""

    def __init__(self, clock: Clock):
        super().__init__()
        self.linear, self.clock = nn.Linear(4, 2), clock

    def forward(self, x, labels):
        self.clock.pass_by(1)
        logits = self.linear(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def images(number: int) -> list[dict]:
    return [{"x": torch.randn(4), "labels": index % 2} for index in range(number)]


def make_trainer(folder, options=None, attach=True, callback=True, clock=None, **arguments):
    clock = clock or Clock()
    defaults = {"num_train_epochs": 2, "eval_strategy": "epoch", "logging_strategy": "epoch", "save_strategy": "epoch"}
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        **{**defaults, **arguments},
    )
    trainer = Trainer(OneSecondModel(clock), args, train_dataset=images(TRAINED), eval_dataset=images(EVALUATED))
    if callback:
        options = {"country": "DEU", "interval": 1000, **(options or {})}
        energy = EnergyCallback(options, make_tracker=lambda *_: FakeTracker(clock), clock=clock)
        energy.attach(trainer) if attach else trainer.add_callback(energy)
    return trainer


def test_phases_and_epochs(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.train()
    report = energy_report(trainer)
    for epoch in (1, 2):
        assert report.joules("train", epoch) == 3 * WATTS and report.seconds("train", epoch) == 3
        assert report.items("train", epoch) == pytest.approx(TRAINED)
        assert report.joules("eval", epoch) == WATTS and report.items("eval", epoch) == EVALUATED
    assert report.finished and report.restarts == 0 and report.location == "Germany"
    assert EnergyReport.load(tmp_path / "energy.json") == report


def test_rows_are_in_the_trainers_logs_beside_the_losses(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.train()
    history = trainer.state.log_history
    trained = [log for log in history if "energy_train_joules" in log]
    assert [(log["epoch"], log["energy_train_joules"], log["energy_train_seconds"]) for log in trained] == [
        (1.0, 45.0, 3.0),
        (2.0, 45.0, 3.0),
    ]
    assert trained[0]["energy_train_joules_per_image"] == pytest.approx(45 / TRAINED)
    assert [log["energy_total_kwh"] * 3.6e6 for log in history if "energy_eval_joules" in log] == pytest.approx(
        [60, 120]
    )
    assert len([log for log in history if "loss" in log]) == 2  # a row does not take a loss's place


def test_unattached_it_writes_to_the_history(tmp_path):
    trainer = make_trainer(tmp_path, attach=False)
    trainer.train()
    assert [log["step"] for log in trainer.state.log_history if "energy_train_joules" in log] == [3, 6]


def test_evaluations_within_an_epoch(tmp_path):
    trainer = make_trainer(tmp_path, eval_strategy="steps", eval_steps=2, save_strategy="no")
    trainer.train()
    report = energy_report(trainer)
    assert [report.joules("train", epoch) for epoch in (1, 2)] == [45, 45]
    assert [report.joules("eval", epoch) for epoch in (1, 2)] == [15, 30]


def test_evaluation_after_training(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.train()
    (callback,) = (each for each in trainer.callback_handler.callbacks if isinstance(each, EnergyCallback))
    assert not callback.meter.running
    with callback.phase("eval"):
        trainer.evaluate()
    with callback.phase("inference"):
        trainer.predict(trainer.eval_dataset)
    report = energy_report(trainer)
    assert report.joules("eval", 2) == 2 * WATTS and report.items("eval", 2) == 2 * EVALUATED
    assert report.joules("inference") == WATTS and report.items("inference") == EVALUATED
    assert EnergyReport.load(tmp_path / "energy.json") == report and not callback.meter.running
    trainer.evaluate()  # not announced, and one batch only: it has been when the first is noticed
    assert energy_report(trainer).joules("eval") == 3 * WATTS and not callback.meter.running


def test_tokens(tmp_path):
    trainer = make_trainer(tmp_path, callback=False, dataloader_drop_last=True, save_strategy="no")
    clock = Clock()
    options = {"make_tracker": lambda *_: FakeTracker(clock), "clock": clock}
    EnergyCallback({"interval": 1000}, unit="token", items_per_sample=512, **options).attach(trainer)
    trainer.train()
    assert energy_report(trainer).items("train", 1) == pytest.approx(2 * BATCH * 512)
    assert any("energy_eval_seconds" in log for log in trainer.state.log_history)
    assert "J/token" in energy_report(trainer).to_markdown()


def test_disabled(tmp_path):
    trainer = make_trainer(tmp_path, {"enabled": False})
    trainer.train()
    assert energy_report(trainer) is None and not (tmp_path / "energy.json").exists()


def test_training_goes_on_without_codecarbon(tmp_path):
    def make_none(*_):
        raise TrackerUnavailable("there is no codecarbon")

    trainer = make_trainer(tmp_path, callback=False)
    EnergyCallback({"interval": 1000}, make_tracker=make_none, clock=trainer.model.clock).attach(trainer)
    trainer.train()
    report = energy_report(trainer)
    assert report.seconds("train") == 6 and report.joules() is None and "no codecarbon" in report.alarms["failure"]
    assert not any("energy_train_joules" in log for log in trainer.state.log_history)


def test_amd_is_no_trouble(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4", raising=False)
    trainer = make_trainer(tmp_path)
    trainer.train()
    assert energy_report(trainer).joules() == 120


def test_idle_baseline_is_measured_once_before_training(tmp_path, monkeypatch):
    clock = Clock()
    trainer = make_trainer(tmp_path, {"idle_seconds": 0.05}, clock=clock)
    monkeypatch.setattr(
        "threading.Event.wait", lambda self, seconds=None: clock.pass_by(4) if seconds == 0.05 else True
    )
    trainer.train()
    monkeypatch.undo()
    report = energy_report(trainer)
    assert report.baselines[0].watts == WATTS and report.baselines[0].seconds == 4
    assert report.joules() == 120 and report.net_joules() == 0


def test_the_budget_stops_training_with_a_checkpoint(tmp_path):
    trainer = make_trainer(tmp_path, {"budget_joules": 4 * WATTS + 1}, num_train_epochs=50, eval_strategy="no")
    (callback,) = (each for each in trainer.callback_handler.callbacks if isinstance(each, EnergyCallback))
    sample_every_step(callback)
    trainer.train()
    assert trainer.state.global_step == 5  # 60 J after four steps, 75 J after five
    assert (tmp_path / "checkpoint-5" / "trainer_state.json").is_file()
    report = energy_report(trainer)
    assert report.stopped_by_budget and report.joules() == 75 and "which stopped training" in report.to_markdown()
    resumed = make_trainer(tmp_path, {"budget_joules": 200}, num_train_epochs=50, eval_strategy="no")
    sample_every_step(next(each for each in resumed.callback_handler.callbacks if isinstance(each, EnergyCallback)))
    resumed.train(resume_from_checkpoint=True)
    assert energy_report(resumed).joules() == 210 and resumed.state.global_step == 14


def sample_every_step(callback):
    """In the place of the thread, which a fake clock would outrun."""
    on_step_end = callback.on_step_end

    def sampled(*arguments, **keywords):
        callback.meter.sample()
        return on_step_end(*arguments, **keywords)

    callback.on_step_end = sampled


def run_until(folder, step: int, **changes):
    """A run that is gone after a step, as if killed: nothing at its end is done."""

    class Killed(Exception):
        pass

    trainer = make_trainer(
        folder, num_train_epochs=4, save_strategy="steps", save_steps=2, eval_strategy="no", **changes
    )
    callback = next(each for each in trainer.callback_handler.callbacks if isinstance(each, EnergyCallback))

    def on_step_begin(args, state, control, **_):
        if state.global_step == step:
            callback.meter.sample()
            callback.meter.save()  # as the thread does every few seconds
            raise Killed

    callback.on_step_begin = on_step_begin
    with pytest.raises(Killed):
        trainer.train(resume_from_checkpoint=True if list(Path(folder).glob("checkpoint-*")) else None)
    callback.meter._end.set()


def resume(folder, **changes) -> EnergyReport:
    arguments = {"num_train_epochs": 4, "save_strategy": "steps", "save_steps": 2, "eval_strategy": "no", **changes}
    trainer = make_trainer(folder, **arguments)
    trainer.train(resume_from_checkpoint=True if list(Path(folder).glob("checkpoint-*")) else None)
    return energy_report(trainer)


def test_a_callback_that_transformers_makes_anew_goes_on_too(tmp_path):
    run_until(tmp_path, 5)
    report = resume(
        tmp_path, restore_callback_states_from_checkpoint=True
    )  # with the real tracker, as nothing fakes it
    assert report.restarts == 1 and report.joules() >= 5 * WATTS and report.tracker != "FakeTracker 1"


def test_sums_go_on_after_a_kill_and_lost_work_counts(tmp_path):
    run_until(tmp_path, 5)  # a checkpoint at 4, and one more step
    report = resume(tmp_path)
    assert report.restarts == 1 and report.lost == WATTS
    assert report.joules() == 13 * WATTS and report.items() == pytest.approx(4 * TRAINED + TRAINED / 3)
    assert report.joules("train", 2) == 4 * WATTS  # its middle step twice
    assert "15 J went into work that was lost" in report.to_markdown()
    assert EnergyReport.load(tmp_path / "energy.json") == report


def test_two_kills(tmp_path):
    run_until(tmp_path, 5)
    run_until(tmp_path, 9)
    report = resume(tmp_path)
    assert report.restarts == 2 and report.lost == 2 * WATTS and report.joules() == 14 * WATTS


@pytest.mark.parametrize("content", [None, "", '{"version": 1, "rows": ['])
def test_without_the_file_the_checkpoint_knows(tmp_path, content):
    run_until(tmp_path, 5)
    (tmp_path / "energy.json").unlink()
    if content is not None:
        (tmp_path / "energy.json").write_text(content)
    report = resume(tmp_path)
    assert report.restarts == 1 and report.lost == 0 and report.joules() == 12 * WATTS


def test_a_checkpoint_holds_what_had_been_spent(tmp_path):
    run_until(tmp_path, 5)
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    saved = EnergyReport.from_dict(state["stateful_callbacks"]["EnergyCallback"]["attributes"]["saved"])
    assert saved.joules() == 4 * WATTS


def test_a_kill_before_the_first_checkpoint_still_cost_energy(tmp_path):
    run_until(tmp_path, 1)
    report = resume(tmp_path)
    assert report.joules() == 13 * WATTS and report.lost == WATTS and report.restarts == 1


def test_a_new_run_in_a_finished_runs_folder_starts_from_zero(tmp_path):
    first = resume(tmp_path, save_strategy="no")
    second = resume(tmp_path, save_strategy="no")
    assert first.run != second.run and second.joules() == 12 * WATTS and second.restarts == 0


def test_a_checkpoint_from_before_energy_was_measured(tmp_path):
    arguments = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "no"}
    make_trainer(tmp_path, callback=False, max_steps=4, **arguments).train()
    report = resume(tmp_path)
    assert report.joules() == 8 * WATTS and report.restarts == 0


def test_another_runs_file_is_not_believed(tmp_path):
    run_until(tmp_path, 5)
    other = EnergyReport.load(tmp_path / "energy.json")
    (tmp_path / "energy.json").write_text(other.to_json().replace(other.run, "f" * 32))
    report = resume(tmp_path)
    assert report.run == other.run and report.joules() == 12 * WATTS


def test_a_step_costs_next_to_nothing(tmp_path):
    trainer = make_trainer(tmp_path, {"budget_kwh": 1})
    trainer.train()
    callback = next(each for each in trainer.callback_handler.callbacks if isinstance(each, EnergyCallback))
    arguments, dataloader = (trainer.args, trainer.state, trainer.control), trainer.get_train_dataloader()
    began = time.perf_counter()
    for _ in range(1000):
        callback.on_step_end(*arguments, train_dataloader=dataloader)
    assert (time.perf_counter() - began) / 1000 < 2e-4


@pytest.mark.slow
def test_kill_9_loses_an_interval_at_most(tmp_path, preloaded):
    """The real tracker, in a process that is killed in the middle of a step."""
    run = preloaded.run(energy_run.__file__, tmp_path, "--kill_at", "16")
    assert run.returncode == -signal.SIGKILL, run.stderr
    killed = EnergyReport.load(tmp_path / "energy.json")
    took = float((tmp_path / "took.txt").read_text())  # seconds of training up to the kill
    assert took - 1.0 <= killed.seconds("train") <= took + 0.1 and not killed.finished
    energy_run.main([str(tmp_path)])
    report = EnergyReport.load(tmp_path / "energy.json")
    assert report.finished and report.restarts == 1 and report.run == killed.run
    assert report.joules("train") > killed.joules("train") and 0 < report.lost < killed.joules("train")
    assert report.seconds("train") >= killed.seconds("train") + 9 * 0.1  # steps 11 to 20


@pytest.mark.slow
def test_two_ranks_count_their_machine_once(tmp_path, preloaded):
    runs = preloaded.run_ranks(2, energy_run.__file__, tmp_path)
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    report = EnergyReport.load(tmp_path / "energy.json")
    rows = {row.rank: row for row in report.rows if row.phase == "train"}
    assert rows[0].joules > 0 and rows[1].joules == 0 and rows[1].seconds > 1
    assert report.items("train") == pytest.approx(80)
    told = [json.loads(line) for run in runs for line in run.stdout.splitlines() if line.startswith('{"')]
    assert len(told) == 1 and told[0]["joules"] == pytest.approx(report.joules())
