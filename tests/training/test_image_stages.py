"""Pre-training on masked patches and by contrast, and what the next stage takes of it."""

import pytest
import torch
import torch.nn.functional as F
from runs import FIELDS, KillAt, Killed, assert_same, outcome, random_images
from transformers import AutoModel, AutoModelForImageClassification, ViTConfig, ViTModel

from hf_efficient import (
    HuggingGreenViTConfig,
    HuggingGreenViTForMaskedImageModeling,
    HuggingGreenViTModel,
    KerformerViTConfig,
    KerformerViTForMaskedImageModeling,
    KerformerViTModel,
    MobileViTv2Config,
    MobileViTv2Model,
)
from hf_efficient.data.collators import take_batch
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.data.image_sets import load_images
from hf_efficient.training.image_stages import (
    ContrastiveArguments,
    ContrastiveModel,
    ContrastiveTrainer,
    MaskedArguments,
    MaskedImages,
    contrastive_scores,
    masked_images,
    recall_at_1,
)
from hf_efficient.training.trainer import EfficientTrainer

pytestmark = pytest.mark.usefixtures("quickly")

LOOKS = {"mean": 0.5, "std": 0.25}
TINY = {name: FIELDS[name] for name in ("image_size", "patch_size", "hidden_size", "intermediate_size")}
TINY |= {"num_hidden_layers": 1, "num_attention_heads": 2}
CONTRAST = {"images_per_class": 4, "per_device_train_batch_size": 8, "learning_rate": 1e-2}


def arguments(folder, cls=ContrastiveArguments, **fields):
    return cls(**{"output_dir": str(folder), "disable_tqdm": True, "logging_steps": 2, **fields})


def unit_vectors(count: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(
        torch.randn(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1
    )


def test_recall_looks_at_others_only():
    z, labels = unit_vectors(2100), torch.arange(2100) % 3
    nearest = (torch.cdist(z, z) + 9 * torch.eye(len(z))).argmin(1)
    assert recall_at_1(z, labels) == pytest.approx((labels[nearest] == labels).double().mean().item())
    assert recall_at_1(F.one_hot(labels).double(), labels) == 1


def test_scores_are_those_of_balanced_batches(tmp_path):
    args = arguments(tmp_path, **CONTRAST)
    z, labels = unit_vectors(24), torch.arange(24) % 3
    scores = contrastive_scores(args)((z.numpy(), labels.numpy()))
    assert set(scores) == {"loss", "recall_at_1"} and 0 < scores["loss"] < 4


# The model


def encoders():
    yield HuggingGreenViTModel(HuggingGreenViTConfig(**TINY, attention_sparsity="entropy"))
    yield KerformerViTModel(KerformerViTConfig(**TINY))
    yield MobileViTv2Model(MobileViTv2Config(image_size=32, width_multiplier=0.25, n_attn_blocks=[1, 1, 1]))
    yield ViTModel(ViTConfig(**TINY))


@pytest.mark.parametrize("encoder", encoders(), ids=lambda encoder: type(encoder).__name__)
def test_any_encoder_is_contrasted(encoder, tmp_path):
    before = {name: x.clone() for name, x in encoder.state_dict().items()}
    model = ContrastiveModel(encoder, projection_size=6).train()
    assert_same({name: x for name, x in before.items() if "pooler" not in name}, dict(encoder.state_dict()))
    size = encoder.config.image_size
    outputs = model(torch.randn(8, 3, size, size), torch.arange(8) % 2)
    assert outputs.embeddings.shape == (8, 6)
    torch.testing.assert_close(outputs.embeddings.norm(dim=1), torch.ones(8))
    outputs.loss.backward()
    assert [name for name, x in model.named_parameters() if x.grad is None] == []


def contrastive_trainer(folder, *callbacks, **fields) -> ContrastiveTrainer:
    args = arguments(folder, **{**CONTRAST, "num_train_epochs": 3, "ema_decay": 0.5, **fields})
    torch.manual_seed(0)
    model = ContrastiveModel(HuggingGreenViTModel(HuggingGreenViTConfig(**FIELDS)), 8)
    return ContrastiveTrainer(
        model,
        args,
        data_collator=take_batch,
        train_dataset=ImageBatches(random_images(41), **LOOKS),
        eval_dataset=ImageBatches(random_images(19, seed=1), **LOOKS),
        compute_metrics=contrastive_scores(args),
        callbacks=list(callbacks),
    )


def test_batches_are_balanced(tmp_path):
    trainer = contrastive_trainer(tmp_path)
    batches = list(trainer.get_train_dataloader())
    assert len(batches) == 5
    assert all(sorted(batch["labels"].bincount(minlength=3).tolist()) == [0, 4, 4] for batch in batches)


def test_contrast_learns_and_the_classifier_takes_the_encoder(tmp_path):
    trainer = contrastive_trainer(tmp_path, num_train_epochs=6)
    first = trainer.evaluate()
    trainer.train()
    last = trainer.evaluate()
    assert last["eval_loss"] < 0.7 * first["eval_loss"] and last["eval_recall_at_1"] > 0.8
    trainer.save_model()
    encoder = trainer.model.encoder.state_dict()
    assert_same(dict(AutoModel.from_pretrained(tmp_path).state_dict()), dict(encoder))
    classifier = AutoModelForImageClassification.from_pretrained(tmp_path, num_labels=3)
    assert_same(dict(classifier.vit.state_dict()), dict(encoder))


def test_contrast_is_resumed_exactly(tmp_path):
    whole = contrastive_trainer(tmp_path / "whole")
    whole.train()
    with pytest.raises(Killed):
        contrastive_trainer(tmp_path / "killed", KillAt(8)).train()
    again = contrastive_trainer(tmp_path / "killed")
    again.train(resume_from_checkpoint=True)
    assert_same(outcome(again), outcome(whole))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"images_per_class": 3}, "multiple of it"),
        ({"images_per_class": 1}, "images_per_class=1 must be at least 2"),
        ({"per_device_train_batch_size": 4}, "two classes"),
        ({"margin": 3.0}, "margin=3.0"),
        ({"projection_size": 0}, "projection_size=0"),
    ],
)
def test_impossible_batches_are_refused(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        arguments(tmp_path, **{**CONTRAST, **fields})


def test_the_best_checkpoint_has_a_metric_of_its_objective(tmp_path):
    masked, contrast = arguments(tmp_path, MaskedArguments), arguments(tmp_path, **CONTRAST)
    assert (masked.metric_for_best_model, masked.greater_is_better) == ("loss", False)
    assert (contrast.metric_for_best_model, contrast.greater_is_better) == ("recall_at_1", True)
    assert contrast.classes_per_batch == 2


# Masked patches


def test_masks_belong_to_images():
    images = ImageBatches(random_images(30), **LOOKS, task="pixels")
    masked = MaskedImages(images, 16, 0.15, seed=3)
    one, other = masked.__getitems__([4, 9]), masked.__getitems__([9])
    assert one["bool_masked_pos"].shape == (2, 16) and one["bool_masked_pos"].sum(1).tolist() == [2, 2]
    assert torch.equal(one["bool_masked_pos"][1], other["bool_masked_pos"][0])
    masked.set_epoch(1)
    again = masked.__getitems__(list(range(30)))["bool_masked_pos"]
    masked.set_epoch(0)
    assert not torch.equal(masked.__getitems__(list(range(30)))["bool_masked_pos"], again)


@pytest.mark.parametrize("family", ["hugginggreen_vit", "kerformer_vit"])
def test_masked_patches_are_learned(tmp_path, family):
    torch.manual_seed(0)
    if family == "hugginggreen_vit":
        model = HuggingGreenViTForMaskedImageModeling(HuggingGreenViTConfig(**FIELDS))
    else:
        model = KerformerViTForMaskedImageModeling(KerformerViTConfig(**TINY, encoder_stride=2))
    digits = load_images("digits", limit=200, evaluation_limit=50)
    train, held_out = (ImageBatches(images, **LOOKS, task="pixels") for images in digits)
    evaluation = masked_images(held_out, model.config)
    assert evaluation.count == 2  # 15 % of 16 patches
    trainer = EfficientTrainer(
        model,
        arguments(tmp_path, MaskedArguments, num_train_epochs=3, per_device_train_batch_size=10, learning_rate=1e-2),
        data_collator=take_batch,
        train_dataset=train if hasattr(model, "random_mask") else masked_images(train, model.config),
        eval_dataset=evaluation,
    )
    first = trainer.evaluate()["eval_loss"]
    assert first == trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.95 * first
    trainer.save_model()
    encoder = AutoModel.from_pretrained(tmp_path).state_dict()
    own = {name.removeprefix("vit."): x for name, x in model.state_dict().items() if name.startswith("vit.")}
    assert_same({n: x for n, x in encoder.items() if n in own}, {n: x for n, x in own.items() if n in encoder})
