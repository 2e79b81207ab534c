"""What a run prints: little, unless it is asked for more."""

import re

import pytest
from runs import make_trainer, tiny_model
from transformers import Trainer, TrainingArguments

from hf_efficient.training import progress
from hf_efficient.training.progress import ProgressLines, duration, header, quote

pytestmark = pytest.mark.usefixtures("quickly")
TIMES = r"  \d+ s(, \d+ s left)?"


def printed(capsys, trainer) -> list[str]:
    trainer.train()
    captured = capsys.readouterr()
    assert "\r" not in captured.out + captured.err
    return captured.out.splitlines()


def assert_lines(lines: list[str], *patterns: str) -> None:
    assert len(lines) == len(patterns), lines
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), line


def test_a_line_per_evaluation(tmp_path, capsys):
    trainer = make_trainer(tmp_path, max_steps=6, eval_steps=3, logging_steps=1, metric_for_best_model="accuracy")
    first, second = printed(capsys, trainer)
    scores = r"  loss [\d.]+  eval_loss [\d.]+  accuracy [\d.]+"
    assert re.fullmatch(rf"epoch 0.6/2  step 3/6{scores} \(best\)  \d+ s, \d+ s left", first), first
    assert re.fullmatch(rf"epoch 1.2/2  step 6/6{scores}( \(best\))?  \d+ s", second), second
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    assert f"  loss {sum(losses[:3]) / 3:.4g}  " in first and f"  loss {sum(losses[3:]) / 3:.4g}  " in second
    accuracies = [log["eval_accuracy"] for log in trainer.state.log_history if "eval_accuracy" in log]
    assert ("(best)" in second) == (accuracies[1] > accuracies[0])


def test_a_line_per_epoch_where_nothing_is_evaluated(tmp_path, capsys):
    lines = printed(capsys, make_trainer(tmp_path, num_train_epochs=2, eval_strategy="no"))
    assert_lines(lines, rf"epoch 1/2  step 5/10  loss [\d.]+{TIMES}", rf"epoch 2/2  step 10/10  loss [\d.]+{TIMES}")


def test_verbose_prints_every_log(tmp_path, capsys):
    lines = printed(capsys, make_trainer(tmp_path, max_steps=4, eval_steps=4, verbose=True))
    step = r"step {}/4  epoch 0.{}0  loss [\d.]+  grad_norm [\d.]+  learning_rate [\d.e-]+"
    assert_lines(lines[:2], step.format(2, 4), step.format(4, 8))
    assert lines[2].startswith("step 4/4  epoch 0.80  eval_loss ") and lines[3].startswith("epoch 0.8/1  step 4/4  ")
    assert len(lines) == 4


def test_a_long_silence_is_broken(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LONGEST_SILENCE", -1)
    lines = printed(capsys, make_trainer(tmp_path, max_steps=4, eval_strategy="no"))
    assert [re.match(r"epoch [\d.]+/1  step (\d)/4  ", line)[1] for line in lines] == ["2", "4", "4"]
    lines = printed(capsys, make_trainer(tmp_path / "evaluated", max_steps=4, eval_steps=4))
    assert [re.match(r"epoch [\d.]+/1  step (\d)/4  loss ", line)[1] for line in lines] == ["2", "4"]


def test_a_bar_on_a_terminal_has_the_lines_above_it(tmp_path, capsys):
    make_trainer(tmp_path, max_steps=4, eval_steps=4, disable_tqdm=False).train()
    captured = capsys.readouterr()
    assert "4/4" in captured.err and captured.out.startswith("epoch 0.8/1  step 4/4  loss ")
    assert len(captured.out.splitlines()) == 1 and "{" not in captured.out


def test_a_resumed_run_says_where_it_goes_on(tmp_path, capsys):
    make_trainer(tmp_path, max_steps=3).train()
    capsys.readouterr()
    trainer = make_trainer(tmp_path, max_steps=6)
    trainer.train(resume_from_checkpoint=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "goes on from step 3/6" and lines[1].startswith("epoch 1.2/2  step 6/6  ") and len(lines) == 2


def test_any_trainer_can_have_the_lines(tmp_path, capsys):
    ours = make_trainer(tmp_path)
    args = TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, disable_tqdm=True, eval_strategy="steps", eval_steps=2, use_cpu=True
    )
    args.remove_unused_columns, args.report_to = False, []
    trainer = Trainer(
        tiny_model(), args, ours.data_collator, ours.train_dataset, ours.eval_dataset, callbacks=[ProgressLines()]
    )
    trainer.train()
    assert re.search(rf"^epoch 0.33/1  step 2/2  eval_loss [\d.]+{TIMES}$", capsys.readouterr().out, re.MULTILINE)


def test_the_header(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.model.base_model.requires_grad_(False)
    count = sum(parameter.numel() for parameter in trainer.model.parameters())
    data, model, device, results = header(trainer, "digits").splitlines()
    assert data == "data     digits: 41 samples for training, 19 for evaluation, 3 classes"
    assert model == f"model    hugginggreen_vit, {count:,} parameters, {16 * 3 + 3} of them trained"
    assert device.startswith("device   cpu, ") and results == f"results  {tmp_path}"


def test_durations_and_quotes():
    assert [duration(x) for x in (0.2, 59, 125, 12000)] == ["0 s", "59 s", "2 min 5 s", "3 h 20 min"]
    assert quote("a\n\n b\nc", 2) == "  | a\n  |  b"
