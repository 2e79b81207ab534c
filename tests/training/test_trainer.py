"""What EfficientTrainer does beside resuming: stops at NaN, averages weights, keeps a history, knows epochs."""

import csv
from contextlib import nullcontext

import pytest
import torch
from runs import FIELDS, STEPS_PER_EPOCH, KillAt, Killed, assert_same, make_trainer, random_images, tiny_model
from safetensors.torch import load_file
from transformers import TrainerCallback

from hf_efficient import MobileViTv2Config, MobileViTv2ForImageClassification
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.training.checkpoints import damage, list_checkpoints
from hf_efficient.training.curves import curves, draw_curves, factor
from hf_efficient.training.ema import MovingAverage
from hf_efficient.training.errors import CheckpointError, NonFiniteError, RunError
from hf_efficient.training.history import history
from hf_efficient.training.losses import soft_label_loss
from hf_efficient.training.trainer import EfficientTrainer

pytestmark = pytest.mark.usefixtures("quickly")


class Poison(TrainerCallback):
    """From a step on, a weight's gradient, or the loss itself, is no number."""

    def __init__(self, step, value, where):
        self.step, self.value, self.where = step, value, where

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step != self.step:
            return
        if self.where == "gradient":
            model.classifier.weight.register_hook(lambda gradient: gradient * self.value)
        else:
            model.classifier.register_forward_hook(lambda module, inputs, output: output * self.value)


@pytest.mark.parametrize(
    ("value", "where", "message"),
    [
        (float("nan"), "loss", "the loss is nan in step 8"),
        (float("inf"), "loss", "the loss is (nan|inf) in step 8"),
        (float("nan"), "gradient", "the gradient norm is nan in step 8"),
        (float("inf"), "gradient", "the gradient norm is (nan|inf) in step 8"),
    ],
)
@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_what_is_no_number_stops_training_before_it_spoils_weights(tmp_path, value, where, message, max_grad_norm):
    trainer = make_trainer(tmp_path, Poison(7, value, where), max_grad_norm=max_grad_norm)
    with pytest.raises(NonFiniteError, match=message) as error:
        trainer.train()
    for advice in ("learning_rate", "warmup_steps", "max_grad_norm", f"{tmp_path / 'checkpoint-6'}, is as it was"):
        assert advice in str(error.value)
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    (last,) = list_checkpoints(tmp_path)[-1:]
    assert last.name == "checkpoint-6" and damage(last) is None


def test_weights_that_are_no_numbers_are_never_saved(tmp_path):
    """The first step spoils them, and there is no second one whose loss would tell."""
    trainer = make_trainer(tmp_path, max_steps=1, lr_scheduler_type="constant")
    trainer.args.learning_rate = 1e39  # more than the arguments take
    with pytest.raises(NonFiniteError, match=r"weights are NaN or infinite after step 1: .* no checkpoint has been"):
        trainer.train()
    with pytest.raises(NonFiniteError, match="They are not saved"):
        trainer.save_model()
    assert not list(tmp_path.rglob("*.safetensors"))


def test_checkpoints_before_the_weights_were_spoiled_are_finite(tmp_path):
    warm_up = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3, "eval_strategy": "no"}
    every_step = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": None, "ema_decay": 0.0}
    trainer = make_trainer(tmp_path, **warm_up, **every_step)
    trainer.args.learning_rate = 1e39  # more than the arguments take
    with pytest.raises(NonFiniteError):
        trainer.train()
    assert list_checkpoints(tmp_path)
    for checkpoint in list_checkpoints(tmp_path):
        assert all(x.isfinite().all() for x in load_file(checkpoint / "model.safetensors").values())


def test_losses_are_logged_as_they_are(tmp_path):
    assert not make_trainer(tmp_path, logging_nan_inf_filter=True).args.logging_nan_inf_filter


# The moving average


def test_the_average_is_the_formula():
    model = torch.nn.Linear(2, 1)
    average, expected = MovingAverage(model, 0.7), model.weight.detach().clone()
    for step in range(30):
        with torch.no_grad():
            model.weight += torch.randn(1, 2)
        average.update()
        decay = min(0.7, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    torch.testing.assert_close(average.averages["weight"], expected)


def test_averages_are_applied_and_taken_back(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model[0].register_buffer("counter", torch.tensor(3))
    average = MovingAverage(model, 0.5)
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    model(torch.randn(8, 2))
    average.update()
    own = {name: x.clone() for name, x in model.state_dict().items()}
    with average.applied(), average.applied():
        inner = {name: x.clone() for name, x in model.state_dict().items()}
        assert not torch.equal(inner["0.weight"], own["0.weight"])
        assert not torch.equal(inner["1.running_mean"], own["1.running_mean"])
        assert inner["0.counter"] == own["0.counter"]
    assert_same(dict(model.state_dict()), own)
    average.save(tmp_path)
    again = MovingAverage(model, 0.5)
    again.load(tmp_path)
    assert again.step == 1
    assert_same(again.averages, average.averages)


def test_an_average_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="without ema_decay"):
        MovingAverage(torch.nn.Linear(2, 1), 0.5).load(tmp_path)
    MovingAverage(torch.nn.Linear(2, 1), 0.5).save(tmp_path)
    with pytest.raises(CheckpointError, match="does not fit"):
        MovingAverage(torch.nn.Linear(3, 1), 0.5).load(tmp_path)


@pytest.mark.parametrize("kind", ["is_fsdp_enabled", "is_deepspeed_enabled"])
def test_averages_of_shards_are_refused(tmp_path, monkeypatch, kind):
    """accelerate shards on GPUs only; this is what it reports there."""
    prepare = EfficientTrainer.create_accelerator_and_postprocess

    def prepare_shards(trainer):
        prepare(trainer)
        setattr(trainer, kind, True)

    monkeypatch.setattr(EfficientTrainer, "create_accelerator_and_postprocess", prepare_shards)
    with pytest.raises(RunError, match=r"ema_decay=0.9 can't be used with FSDP or DeepSpeed"):
        make_trainer(tmp_path)
    assert make_trainer(tmp_path, ema_decay=0.0).average is None


def test_averages_are_what_is_evaluated_and_saved(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=6, eval_steps=6, load_best_model_at_end=False)
    trainer.train()
    final = {name: x.clone() for name, x in trainer.model.state_dict().items()}
    raw, averages = tiny_model(), MovingAverage(tiny_model(), 0.9)
    raw = raw.from_pretrained(tmp_path / "checkpoint-6").state_dict()
    averages.load(tmp_path / "checkpoint-6")
    assert all(torch.equal(final[name], average) for name, average in averages.averages.items())
    assert not torch.equal(raw["classifier.weight"], final["classifier.weight"])
    assert torch.equal(raw["vit.selector.step"], final["vit.selector.step"])
    logged = [log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log]
    assert trainer.evaluate()["eval_loss"] == logged[0]
    trainer.save_model()
    assert_same(dict(tiny_model().from_pretrained(tmp_path).state_dict()), final)


def test_batch_norm_is_resumed_too(tmp_path):
    fields = {"image_size": 32, "width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1], "num_labels": 3}
    weights = []
    for name, kills in (("whole", []), ("killed", [KillAt(3)])):
        for kill in (*kills, None):
            torch.manual_seed(0)
            model = MobileViTv2ForImageClassification(MobileViTv2Config(**fields))
            settings = {"max_steps": 4, "eval_steps": 2, "load_best_model_at_end": False}
            trainer = make_trainer(tmp_path / name, *([kill] if kill else []), model=model, **settings)
            for dataset in (trainer.train_dataset, trainer.eval_dataset):
                dataset.image_size = (32, 32)
            with pytest.raises(Killed) if kill else nullcontext():
                trainer.train(resume_from_checkpoint=True)
        weights.append(dict(model.state_dict()))
    assert_same(weights[1], weights[0])


# Logs


def test_history_has_what_was_logged_once(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.train()
    trainer.evaluate()
    with (tmp_path / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:3] == ["step", "epoch", "loss"]
    assert {"eval_loss", "eval_accuracy", "learning_rate", "grad_norm"} <= set(rows[0])
    assert [int(row["step"]) for row in rows if row["loss"]] == [2, 4, 6, 8, 10, 12, 14]
    assert [int(row["step"]) for row in rows if row["eval_loss"]] == [3, 6, 9, 12, 15]
    assert not any("runtime" in name or "second" in name for name in rows[0])
    assert len(rows) == len(history(trainer.state.log_history)) - 1  # the evaluation afterwards is no history


def test_curves_have_training_and_evaluation_in_one_panel():
    rows = [{"step": 1, "loss": 2.0, "grad_norm": 1.0}]
    rows.append({"step": 2, "eval_loss": 1.5, "eval_accuracy": 0.5, "eval_micro_f1": 0.5})
    assert curves(rows, "accuracy") == {
        "loss": {"training": [(1, 2.0)], "evaluation": [(2, 1.5)]},
        "accuracy": {"evaluation": [(2, 0.5)]},
    }


def test_a_metric_that_is_the_loss_in_another_unit_is_an_axis_not_a_panel():
    logs = [
        {"step": step, "eval_loss": loss, "eval_bits_per_byte": loss / 0.6931}
        for step, loss in enumerate((3, 2, 1), 1)
    ]
    assert factor(*(panel["evaluation"] for panel in curves(logs, "bits_per_byte").values())) == pytest.approx(
        1 / 0.6931
    )
    one = draw_curves(logs, "bits_per_byte", best_step=3)
    logs[1]["eval_bits_per_byte"] = 1.0
    two = draw_curves(logs, "bits_per_byte", best_step=3)
    assert one.width * 2 == two.width and draw_curves([{"step": 1, "epoch": 1}]) is None


def test_curves_are_drawn_even_if_training_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_efficient.training.trainer.draw_curves", draw_curves)
    with pytest.raises(NonFiniteError):
        make_trainer(tmp_path, Poison(7, float("nan"), "loss")).train()
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


# Epochs


def test_model_and_data_are_told_of_epochs(tmp_path):
    told = []
    trainer = make_trainer(tmp_path, num_train_epochs=2, eval_strategy="no")
    for part in (trainer.model, trainer.train_dataset):
        tell = part.set_epoch
        part.set_epoch = lambda epoch, tell=tell, part=part: (told.append((type(part).__name__, epoch)), tell(epoch))
    trainer.train()
    names = ("ImageBatches", "HuggingGreenViTForImageClassification")
    assert set(told) == {(name, epoch) for name in names for epoch in (0, 1)}
    assert trainer.model.vit.selector.step == 2 * STEPS_PER_EPOCH


def test_loader_workers_change_nothing(tmp_path):
    weights = []
    for workers in (0, 1):
        trainer = make_trainer(
            tmp_path / str(workers), max_steps=7, eval_strategy="no", dataloader_num_workers=workers
        )
        trainer.train()
        weights.append(dict(trainer.model.state_dict()))
    assert_same(weights[0], weights[1])


def test_the_same_seed_is_the_same_run(tmp_path):
    runs = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(ord(name))
        trainer = make_trainer(tmp_path / name, max_steps=4, eval_steps=4, seed=seed)
        trainer.train()
        runs.append(dict(trainer.model.state_dict()))
    assert_same(runs[0], runs[1])
    assert not torch.equal(runs[0]["classifier.weight"], runs[2]["classifier.weight"])


# Soft labels


@pytest.mark.parametrize("accumulated", [1, 2])
def test_soft_labels_are_the_models_own_loss_where_they_are_hard(tmp_path, accumulated):
    """With what the model itself adds, and however many batches a step has."""
    fields = {**FIELDS, "attention_sparsity": "entropy", "attention_sparsity_weight": 0.1, "attention": "softmax"}
    weights = []
    for soft in (False, True):
        model = tiny_model(**fields)
        trainer = make_trainer(
            tmp_path / str(soft),
            model=model,
            max_steps=3,
            eval_strategy="no",
            per_device_train_batch_size=8 // accumulated,
            gradient_accumulation_steps=accumulated,
        )
        if soft:
            trainer.compute_loss_func = soft_label_loss(model)
            plain = trainer.train_dataset.__getitems__
            trainer.train_dataset.__class__ = SoftBatches
            assert plain([0])["labels"].shape == (1,)
        trainer.train()
        weights.append({name: x for name, x in model.state_dict().items() if x.is_floating_point()})
    torch.testing.assert_close(weights[0], weights[1])


class SoftBatches(ImageBatches):
    def __getitems__(self, indices):
        batch = ImageBatches.__getitems__(self, indices)
        return {**batch, "labels": torch.nn.functional.one_hot(batch["labels"], 3).float()}


def test_images_that_fill_no_batch_are_left_out(tmp_path):
    assert len(make_trainer(tmp_path).get_train_dataloader()) == 5
    assert len(make_trainer(tmp_path, whole_batches=False).get_train_dataloader()) == 6
    assert len(random_images(41)) == 41
