"""Checkpoints exist whole or not at all, and only those that nothing has happened to are gone back to."""

import json
import os
import pickle
import resource
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from runs import KillAt, Killed, assert_same, make_trainer, outcome, tiny_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageClassification, ViTConfig, ViTForImageClassification

from hf_efficient.training import checkpoints
from hf_efficient.training.checkpoints import (
    begin,
    complete,
    damage,
    list_checkpoints,
    load_weights,
    newest_intact,
    put_weights,
    remove_leftovers,
    replace_file,
    rotate,
)
from hf_efficient.training.errors import CheckpointError
from hf_efficient.training.trainer import EfficientTrainer

pytestmark = pytest.mark.usefixtures("quickly")


def write(folder, step, content=b"weights"):
    checkpoint = folder / f"checkpoint-{step}"
    inner = begin(checkpoint)
    (inner / "model.safetensors").write_bytes(content)
    (inner / "optimizer.pt").write_bytes(b"moments")
    complete(inner, checkpoint)
    return checkpoint


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_becomes_a_checkpoint_when_it_is_complete(tmp_path):
    inner = begin(tmp_path / "checkpoint-5")
    (inner / "model.safetensors").write_bytes(b"weights")
    assert list_checkpoints(tmp_path) == [] and newest_intact(tmp_path) is None
    complete(inner, tmp_path / "checkpoint-5")
    assert names(tmp_path) == ["checkpoint-5"]
    assert newest_intact(tmp_path) == tmp_path / "checkpoint-5"
    manifest = json.loads((tmp_path / "checkpoint-5" / "manifest.json").read_text())
    assert manifest["files"]["model.safetensors"]["size"] == 7


def test_steps_are_numbers(tmp_path):
    for step in (5, 100, 20):
        write(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    assert [checkpoints.step_of(path) for path in list_checkpoints(tmp_path)] == [5, 20, 100]


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda folder: (folder / "optimizer.pt").unlink(), "optimizer.pt is missing"),
        (lambda folder: (folder / "optimizer.pt").write_bytes(b"mom"), "optimizer.pt has 3 bytes instead of 7"),
        (lambda folder: (folder / "optimizer.pt").write_bytes(b"Moments"), "SHA-256"),
        (lambda folder: (folder / "manifest.json").unlink(), "no manifest.json"),
        (lambda folder: (folder / "manifest.json").write_text('{"files": '), "manifest.json can't be read"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json can't be read"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_and_named(tmp_path, harm, reason):
    older, newer = write(tmp_path, 5), write(tmp_path, 10)
    harm(newer)
    with pytest.warns(UserWarning, match="checkpoint-10 is skipped") as warned:
        assert newest_intact(tmp_path) == older
    assert reason in str(warned[0].message)
    assert damage(older) is None


def test_old_ones_go_after_the_new_one_is_there_and_the_best_stays(tmp_path):
    best = write(tmp_path, 1)
    for step in (2, 3, 4):
        write(tmp_path, step)
        rotate(tmp_path, 2, keep=best)
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-4"]
    write(tmp_path, 5)
    rotate(tmp_path, 1, keep=best)
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-5"]
    rotate(tmp_path, None)
    rotate(tmp_path, 1)
    assert names(tmp_path) == ["checkpoint-5"]


def test_a_checkpoint_replaces_a_damaged_one_of_the_same_step(tmp_path):
    (write(tmp_path, 5) / "optimizer.pt").unlink()
    write(tmp_path, 5, b"other")
    assert damage(tmp_path / "checkpoint-5") is None
    assert names(tmp_path) == ["checkpoint-5"]


def test_leftovers_are_removed(tmp_path):
    begin(tmp_path / "checkpoint-5")
    (tmp_path / "checkpoint-4.outdated").mkdir()
    (tmp_path / "notes").mkdir()
    write(tmp_path, 3)
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["checkpoint-3", "notes"]


def test_a_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    replace_file(tmp_path / "sub" / "file", "old")
    monkeypatch.setattr("hf_efficient.training.checkpoints.force_to_disk", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        replace_file(tmp_path / "sub" / "file", "new")
    assert (tmp_path / "sub" / "file").read_text() == "old"


class Vanishing(EfficientTrainer):
    """A trainer whose checkpoint loses a file when its weights have been loaded."""

    def _load_from_checkpoint(self, checkpoint, model=None):
        super()._load_from_checkpoint(checkpoint, model)
        Path(checkpoint, self.file).unlink()


@pytest.mark.parametrize("file", ["optimizer.pt", "rng_state.pth", "loop_0.json"])
def test_a_checkpoint_that_vanishes_while_it_is_loaded_is_an_error(tmp_path, file):
    """transformers goes on without what it does not find."""
    settings = {"eval_steps": 3, "max_steps": 4}
    with pytest.raises(Killed):
        make_trainer(tmp_path, KillAt(4), **settings).train()
    trainer = make_trainer(tmp_path, trainer_class=Vanishing, **settings)
    trainer.file = file
    with pytest.raises(CheckpointError, match=f"checkpoint-3 was removed or changed .* {file} is missing"):
        trainer.train(resume_from_checkpoint=True)


# Weights


def test_all_weights_are_loaded_or_none(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    other = tiny_model()
    torch.nn.init.ones_(other.classifier.weight)
    before = {name: x.clone() for name, x in other.state_dict().items()}
    missing = {name: x for name, x in stored.items() if name != "classifier.bias"}
    wrong = {**stored, "classifier.weight": torch.zeros(4, 16)}
    for change, reason in (
        (missing, "lacks classifier.bias"),
        ({**stored, "extra": torch.zeros(1)}, "has, unlike the model, extra"),
        (wrong, "another shape of classifier.weight"),
    ):
        save_file(change, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=reason):
            load_weights(other, tmp_path)
        assert_same(dict(other.state_dict()), before)
    save_file(stored, tmp_path / "model.safetensors")
    load_weights(other, tmp_path)
    assert_same(dict(other.state_dict()), dict(model.state_dict()))


def test_shards_are_read_and_outside_paths_refused(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    other = tiny_model()
    torch.nn.init.ones_(other.classifier.weight)
    load_weights(other, tmp_path)
    assert_same(dict(other.state_dict()), dict(model.state_dict()))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00001", "../model-00001"))
    with pytest.raises(CheckpointError, match="outside its folder"):
        load_weights(other, tmp_path)


def test_tied_weights_are_stored_once():
    model = torch.nn.Module()
    model.first, model.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    model.second.weight = model.first.weight
    stored = {name: torch.ones_like(x) for name, x in model.state_dict().items() if name != "second.weight"}
    put_weights(model, stored, "here")
    assert (model.second.weight == 1).all()


def vit():
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    config.num_labels = 3
    return ViTForImageClassification(config)


def test_transformers_vit_is_resumed_and_its_best_restored(tmp_path):
    """Stock Trainer loses 32 of 40 of its tensors, and only warns: checkpoints have other names than the model."""
    settings = {"max_steps": 6, "eval_steps": 2, "save_total_limit": None, "metric_for_best_model": "loss"}
    expected = make_trainer(tmp_path / "a", model=vit(), **settings)
    expected.train()
    with pytest.raises(Killed):
        make_trainer(tmp_path / "b", KillAt(5), model=vit(), **settings).train(resume_from_checkpoint=True)
    found = make_trainer(tmp_path / "b", model=vit(), **settings)
    found.train(resume_from_checkpoint=True)
    assert_same(outcome(found), outcome(expected))
    best = AutoModelForImageClassification.from_pretrained(expected.state.best_model_checkpoint)
    assert best.state_dict().keys() == expected.model.state_dict().keys()


RESTLESS = {"learning_rate": 1.0, "lr_scheduler_type": "constant"}  # the last step is not the best


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_the_best_step_is_restored_in_every_tensor(tmp_path, ema_decay):
    trainer = make_trainer(tmp_path, ema_decay=ema_decay, save_total_limit=1, **RESTLESS)
    seen = {}

    class Watch(torch.nn.Module):
        pass

    evaluate = trainer.evaluate

    def watched(*args, **kwargs):
        metrics = evaluate(*args, **kwargs)
        with trainer.average.applied() if trainer.average else warnings.catch_warnings():
            seen[trainer.state.global_step] = {name: x.clone() for name, x in trainer.model.state_dict().items()}
        return metrics

    trainer.evaluate = watched
    trainer.train()
    best = trainer.state.best_global_step
    assert best < trainer.state.global_step, "the test needs a best step that is not the last"
    assert_same(dict(trainer.model.state_dict()), seen[best])
    losses = {log["step"]: log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log}
    assert evaluate()["eval_loss"] == losses[best] == min(losses.values())


def test_a_damaged_best_checkpoint_is_not_passed_over(tmp_path):
    trainer = make_trainer(tmp_path, **RESTLESS)
    trainer.train()
    best = trainer.state.best_model_checkpoint
    (tmp_path / best / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"best checkpoint.*damaged.*--load_best_model_at_end false"):
        make_trainer(tmp_path, **RESTLESS).train(resume_from_checkpoint=True)


# Damage between two processes


def interrupted(folder):
    with pytest.raises(Killed):
        make_trainer(folder, KillAt(11), save_total_limit=None).train(resume_from_checkpoint=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    trainer = make_trainer(tmp_path_factory.mktemp("whole"), save_total_limit=None)
    trainer.train()
    return outcome(trainer)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "rng_state.pth", "ema.safetensors"])
@pytest.mark.parametrize("harm", ["truncated", "missing"])
def test_a_run_falls_back_to_the_checkpoint_before(tmp_path, uninterrupted, file, harm):
    interrupted(tmp_path)
    victim = tmp_path / "checkpoint-9" / file
    victim.unlink() if harm == "missing" else victim.write_bytes(victim.read_bytes()[:-10])
    trainer = make_trainer(tmp_path, save_total_limit=None)
    with pytest.warns(UserWarning, match=f"checkpoint-9 is skipped: {file}"):
        assert trainer.choose_checkpoint(True) == tmp_path / "checkpoint-6"
    assert (tmp_path / "checkpoint-9.damaged").is_dir()
    trainer.train(resume_from_checkpoint=True)
    assert_same(outcome(trainer), uninterrupted)
    assert [checkpoints.step_of(path) for path in list_checkpoints(tmp_path)] == [3, 6, 9, 12, 15]
    assert not list(tmp_path.glob("*.damaged"))


def test_a_run_without_an_intact_checkpoint_begins_anew(tmp_path, uninterrupted):
    interrupted(tmp_path)
    for checkpoint in list_checkpoints(tmp_path):
        (checkpoint / "scheduler.pt").unlink()
    trainer = make_trainer(tmp_path, save_total_limit=None)
    with pytest.warns(UserWarning, match="scheduler.pt is missing"):
        trainer.train(resume_from_checkpoint=True)
    assert_same(outcome(trainer), uninterrupted)


def test_a_checkpoint_that_is_asked_for_must_be_intact(tmp_path):
    interrupted(tmp_path)
    (tmp_path / "checkpoint-9" / "optimizer.pt").unlink()
    with pytest.raises(CheckpointError, match=r"can't resume from .*checkpoint-9: optimizer.pt is missing"):
        make_trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-9"))


def test_a_run_killed_between_two_files_of_a_checkpoint(tmp_path, uninterrupted):
    trainer = make_trainer(tmp_path, save_total_limit=None)

    def kill(folder):
        if folder.name.startswith("checkpoint-9"):
            raise Killed

    trainer.save_extra = kill
    with pytest.raises(Killed):
        trainer.train(resume_from_checkpoint=True)
    assert (tmp_path / f"checkpoint-9{checkpoints.UNFINISHED}" / "optimizer.pt").is_file()
    trainer = make_trainer(tmp_path, save_total_limit=None)
    assert trainer.choose_checkpoint(True) == tmp_path / "checkpoint-6"
    trainer.train(resume_from_checkpoint=True)
    assert_same(outcome(trainer), uninterrupted)
    assert not list(tmp_path.glob(f"*{checkpoints.UNFINISHED}"))


class Payload:
    """Creates a folder when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_pickle_in_a_checkpoint_is_not_executed(tmp_path, file):
    """Whoever puts it there makes the manifest agree with it."""
    interrupted(tmp_path)
    newest = tmp_path / "checkpoint-9"
    folder = newest.rename(begin(newest))
    (folder / "manifest.json").unlink()
    torch.save({"state": Payload(tmp_path / "executed")}, folder / file)
    complete(folder, newest)
    with pytest.raises(pickle.UnpicklingError, match="Weights only"):
        make_trainer(tmp_path).train(resume_from_checkpoint=True)
    assert not (tmp_path / "executed").exists()


def test_another_model_is_refused(tmp_path):
    interrupted(tmp_path)
    with pytest.raises(CheckpointError, match="another output_dir"):
        make_trainer(tmp_path, model=tiny_model(num_hidden_layers=3)).train(resume_from_checkpoint=True)


# Full disks


@pytest.mark.parametrize("limit", [100, 3000, 20_000])  # JSON, a small file, weights: each has its own writer
def test_a_full_disk_costs_no_checkpoint(tmp_path, uninterrupted, limit):
    with pytest.raises(Killed):
        make_trainer(tmp_path, KillAt(8), save_total_limit=1).train(resume_from_checkpoint=True)
    trainer = make_trainer(tmp_path, save_total_limit=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    save_model = trainer.save_model

    def save_on_a_full_disk(*args, **kwargs):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        save_model(*args, **kwargs)

    trainer.save_model = save_on_a_full_disk
    try:
        with pytest.raises(CheckpointError) as error:
            trainer.train(resume_from_checkpoint=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"{tmp_path / 'checkpoint-9'} could not be written" in str(error.value)
    assert f"{tmp_path / 'checkpoint-6'}, is kept" in str(error.value)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-6"]
    trainer = make_trainer(tmp_path, save_total_limit=1)
    trainer.train(resume_from_checkpoint=True)
    assert_same(outcome(trainer), uninterrupted)


def test_secrets_are_not_written(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=3, hub_token="hf_topsecret")
    trainer.train()
    trainer.save_model()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "training_args.bin" for path in written)
    for path in written:
        assert b"hf_topsecret" not in path.read_bytes(), path
    assert trainer.args.hub_token == "hf_topsecret"


def test_a_moved_folder_is_resumed(tmp_path, uninterrupted):
    interrupted(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    trainer = make_trainer(tmp_path / "there", save_total_limit=None)
    trainer.train(resume_from_checkpoint=True)
    assert_same(outcome(trainer), uninterrupted)
