"""Tiny runs for the tests of training: a HuggingGreenViT with dropout and patch selection on random images."""

import torch
from transformers import TrainerCallback

from hf_efficient import HuggingGreenViTConfig, HuggingGreenViTForImageClassification
from hf_efficient.data.augmentation import Augmentation
from hf_efficient.data.collators import take_batch
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.data.image_sets import ImageSet
from hf_efficient.training.arguments import EfficientTrainingArguments
from hf_efficient.training.history import history
from hf_efficient.training.trainer import EfficientTrainer

STEPS_PER_EPOCH, EPOCHS = 5, 3  # 41 images in batches of 8
FIELDS = {
    "image_size": 8,
    "patch_size": 2,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "top_k": 8,
    "prob": 0.5,
    "prob_decay_rate": 0.5,
    "num_labels": 3,
}
DEFAULTS = {
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "num_train_epochs": EPOCHS,
    "learning_rate": 1e-2,
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "ema_decay": 0.9,
    "disable_tqdm": True,
}


class Killed(BaseException):
    """Nothing catches it, as nothing catches kill -9."""


class KillAt(TrainerCallback):
    """Ends training in a step: at its `beginning`, when it is `taken`, or when what follows it is `saved`."""

    def __init__(self, step: int, when: str = "taken"):
        self.step, self.when = step, when

    def on_step_begin(self, args, state, control, **kwargs):
        self.kill(state, "beginning")

    def on_step_end(self, args, state, control, **kwargs):
        self.kill(state, "taken")

    def on_save(self, args, state, control, **kwargs):
        self.kill(state, "saved")

    def kill(self, state, when: str) -> None:
        if when == self.when and state.global_step == self.step:
            raise Killed


def random_images(count: int, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    pixels = torch.randint(0, 120, (count, 3, 8, 8), generator=generator)
    pixels += 60 * labels.view(-1, 1, 1, 1)  # there is something to learn
    return ImageSet(pixels.to(torch.uint8), labels, ["dark", "grey", "bright"])


def tiny_model(**fields) -> HuggingGreenViTForImageClassification:
    torch.manual_seed(0)
    return HuggingGreenViTForImageClassification(HuggingGreenViTConfig(**{**FIELDS, **fields}))


def make_trainer(folder, *callbacks, model=None, trainer_class=EfficientTrainer, **arguments) -> EfficientTrainer:
    looks = {"mean": 0.5, "std": 0.25}
    return trainer_class(
        tiny_model() if model is None else model,
        EfficientTrainingArguments(**{"output_dir": str(folder), **DEFAULTS, **arguments}),
        data_collator=take_batch,
        train_dataset=ImageBatches(random_images(41), **looks, augmentation=Augmentation(flip=True, crop=1), seed=0),
        eval_dataset=ImageBatches(random_images(19, seed=1), **looks),
        compute_metrics=lambda prediction: {
            "accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())
        },
        callbacks=list(callbacks),
    )


def outcome(trainer: EfficientTrainer) -> dict:
    """All that must be the same after a resume."""
    return {
        "weights": {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()},
        "optimizer": trainer.optimizer.state_dict()["state"],
        "scheduler": trainer.lr_scheduler.state_dict(),
        "history": history(trainer.state.log_history),
        "train_loss": [log["train_loss"] for log in trainer.state.log_history if "train_loss" in log],
        "best": (trainer.state.best_metric, trainer.state.best_global_step),
        "step": trainer.state.global_step,
        "flos": trainer.state.total_flos,
    }


def assert_same(found, expected, place: str = "") -> None:
    """Bit by bit."""
    assert type(found) is type(expected), place
    if isinstance(found, dict):
        assert list(found) == list(expected), place
        for key in found:
            assert_same(found[key], expected[key], f"{place}/{key}")
    elif isinstance(found, list | tuple):
        assert len(found) == len(expected), f"{place}: {found} and {expected}"
        for i, (first, second) in enumerate(zip(found, expected, strict=True)):
            assert_same(first, second, f"{place}/{i}")
    elif torch.is_tensor(found):
        assert torch.equal(found, expected), place
    else:
        assert found == expected, f"{place}: {found} and {expected}"
