"""What the last evaluation of a classifier looks like: what is confused, images with their answers."""

import numpy as np
import pytest
import torch

from hf_efficient import HuggingGreenViTConfig, HuggingGreenViTForImageClassification
from hf_efficient.data.collators import take_batch
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.data.image_sets import ImageSet
from hf_efficient.training import EfficientTrainingArguments
from hf_efficient.training.classification_trainer import SHOWN, ClassificationTrainer, evenly
from hf_efficient.training.confusion_picture import draw_confusion, shortened


def make_trainer(folder, count: int = 30) -> ClassificationTrainer:
    """An untrained model and images that are white, grey or black."""
    labels = torch.arange(count) % 3
    pixels = (labels * 127).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 8, 8)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = HuggingGreenViTConfig(**sizes, image_size=8, patch_size=4, num_labels=3)
    data = ImageBatches(ImageSet(pixels, labels, ["black", "grey", "white"]), mean=0.5, std=0.5)
    arguments = EfficientTrainingArguments(output_dir=str(folder), disable_tqdm=True)
    model = HuggingGreenViTForImageClassification(config)
    return ClassificationTrainer(model, arguments, data_collator=take_batch, eval_dataset=data)


def test_pictures_are_of_the_last_evaluation(tmp_path):
    trainer = make_trainer(tmp_path)
    accuracy = trainer.evaluate()["eval_accuracy"]
    answers = trainer.answers
    assert torch.equal(answers.labels, torch.arange(30) % 3)
    assert (answers.predictions == answers.labels).float().mean() == pytest.approx(accuracy)
    pictures = trainer.pictures()
    assert set(pictures) == {"confusion", "predictions", "example"} and pictures["example"].size == (8, 8)
    trainer.evaluate(make_trainer(tmp_path, 6).eval_dataset)
    assert len(trainer.answers.labels) == 6


def test_captions_say_what_is_wrong(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.evaluate()
    trainer.answers = trainer.answers._replace(predictions=torch.zeros(30, dtype=torch.int64))
    (_, right), (picture, wrong) = trainer.captioned(torch.tensor([0, 2]), ["black", "grey", "white"])
    assert right.startswith("black (") and wrong.startswith("black (") and wrong.endswith(", is white")
    assert picture.getpixel((0, 0)) == (254, 254, 254)
    trainer.answers = trainer.answers._replace(predictions=trainer.answers.labels)  # nothing is wrong
    assert trainer.pictures()["predictions"].width > 600


def test_samples_come_from_all_over():
    assert evenly(torch.arange(100), SHOWN).tolist() == [0, 12, 25, 37, 50, 62, 75, 87]
    assert evenly(torch.arange(3), SHOWN).tolist() == [0, 1, 2]


def test_a_matrix_up_to_twenty_classes_and_pairs_beyond():
    for classes in (2, 20, 21, 200):
        labels = torch.arange(1000) % classes
        names = [f"class {i}, or {i}" for i in range(classes)]
        for predictions in (labels, (labels + (torch.arange(1000) % 7 == 0)) % classes):
            picture = draw_confusion(labels, predictions, names)
            assert max(picture.size) < 1500
    diagonal = np.asarray(draw_confusion([0, 1], [0, 1], ["a", "b"])).astype(int)
    assert (diagonal[..., 2] - diagonal[..., 0]).max() > 100 > (diagonal[..., 0] - diagonal[..., 2]).max()  # no red


def test_the_first_of_several_names():
    assert shortened("tabby, tabby cat") == "tabby" and len(shortened("x" * 99)) == 24
