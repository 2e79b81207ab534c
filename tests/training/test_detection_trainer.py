"""Detectors: what evaluation gathers of them, and that they learn."""

import pytest
import torch
from runs import FIELDS

from hf_efficient import (
    HuggingGreenViTConfig,
    HuggingGreenViTForObjectDetection,
    MobileViTv2Config,
    MobileViTv2ForObjectDetection,
)
from hf_efficient.data.collators import take_batch
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.data.image_sets import ImageSet
from hf_efficient.data.objects import Objects
from hf_efficient.training.arguments import EfficientTrainingArguments
from hf_efficient.training.detection_trainer import (
    PADDING,
    DetectionTrainer,
    pack_detections,
    pack_objects,
    score_detections,
)

pytestmark = pytest.mark.usefixtures("quickly")


def squares(count: int, size: int = 8, seed: int = 0) -> ImageSet:
    """Dark images with one bright square in one of four corners; its brightness is its class."""
    generator = torch.Generator().manual_seed(seed)
    labels, half = torch.arange(count) % 2, size // 2
    pixels, boxes = torch.zeros(count, 3, size, size, dtype=torch.uint8), torch.empty(count, 4)
    for i, corner in enumerate(torch.randint(0, 4, (count,), generator=generator).tolist()):
        row, column = divmod(corner, 2)
        square = pixels[i, :, row * half : (row + 1) * half, column * half : (column + 1) * half]
        square.fill_(120 + 120 * labels[i].item())
        boxes[i] = torch.tensor([0.25 + column / 2, 0.25 + row / 2, 0.5, 0.5])
    return ImageSet(pixels, Objects.one_each(labels, boxes, (size, size)), ["grey", "white"])


def detection_trainer(folder, model, size: int = 8, mosaic: bool = False, **fields) -> DetectionTrainer:
    looks = {"mean": 0.5, "std": 0.25, "task": "detection", "mosaic": mosaic, "image_size": size}
    return DetectionTrainer(
        model,
        EfficientTrainingArguments(
            **{"output_dir": str(folder), "per_device_train_batch_size": 16, "logging_steps": 4, **fields},
            disable_tqdm=True,
            eval_strategy="no",
        ),
        data_collator=take_batch,
        train_dataset=ImageBatches(squares(64, size), **looks),
        eval_dataset=ImageBatches(squares(19, size, seed=1), **looks),
    )


def hugginggreen(**fields) -> HuggingGreenViTForObjectDetection:
    torch.manual_seed(0)
    changes = {"num_labels": 2, "heuristic": "none", "top_k": None, "hidden_size": 32}
    changes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.1}
    return HuggingGreenViTForObjectDetection(HuggingGreenViTConfig(**{**FIELDS, **changes, **fields}))


def test_one_object_is_found(tmp_path):
    trainer = detection_trainer(tmp_path, hugginggreen(num_queries=1), num_train_epochs=30, learning_rate=3e-3)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert {"eval_map", "eval_map_50", "eval_found_50", "eval_iou", "eval_loss"} <= set(after)
    assert after["eval_loss"] < 0.7 * before["eval_loss"] and after["eval_iou"] > before["eval_iou"] + 0.1


def test_mosaics_have_four_objects(tmp_path):
    trainer = detection_trainer(tmp_path, hugginggreen(num_queries=6), mosaic=True)
    found = trainer.predict(trainer.eval_dataset)
    assert found.predictions.shape == (19, 6, 6) and found.label_ids.shape == (19, 4, 5)
    assert "test_map_50" in found.metrics


def test_another_family_is_trained_and_scored_alike(tmp_path):
    torch.manual_seed(0)
    config = MobileViTv2Config(image_size=64, width_multiplier=0.25, n_attn_blocks=[1, 1, 1], num_labels=2)
    trainer = detection_trainer(tmp_path, MobileViTv2ForObjectDetection(config), size=64, max_steps=2)
    trainer.train()
    assert 0 <= trainer.evaluate()["eval_map_50"] <= 1


def test_scores_are_the_same_in_any_batches(tmp_path):
    model = hugginggreen(num_queries=4)
    scores = [
        detection_trainer(tmp_path, model, mosaic=True, per_device_eval_batch_size=size).evaluate() for size in (3, 19)
    ]
    for name in ("eval_map", "eval_iou"):
        assert scores[0][name] == pytest.approx(scores[1][name])


def test_packing_keeps_what_scores_need():
    logits = torch.tensor([[[5.0, 0.0, 0.0], [0.0, 6.0, 0.0]]])
    boxes = torch.tensor([[[0.25, 0.25, 0.5, 0.5], [0.75, 0.75, 0.5, 0.5]]])
    objects = [
        {"class_labels": torch.tensor([0, 1]), "boxes": boxes[0]},
        {"class_labels": torch.tensor([1]), "boxes": boxes[0, 1:]},
        {"class_labels": torch.zeros(0, dtype=torch.long), "boxes": torch.zeros(0, 4)},
    ]
    packed, truth = pack_detections(logits, boxes, torch.ones(1, 4)).expand(3, -1, -1), pack_objects(objects)
    assert packed.shape == (3, 2, 6) and truth.shape == (3, 2, 5)
    assert packed[0, :, 1].tolist() == [0, 1] and packed[0, 1, 2:].tolist() == [0.5, 0.5, 1, 1]
    assert (truth[1, 1] == PADDING).all() and (truth[2] == PADDING).all()
    scores = score_detections((packed[:1].numpy(), truth[:1].numpy()))
    assert scores == pytest.approx({"map": 1.0, "map_50": 1.0, "map_small": 1.0, "found_50": 1.0, "iou": 1.0})
