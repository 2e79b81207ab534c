"""What other people's trainers can take of ours: each piece in transformers' own Trainer."""

import warnings

import pytest
import torch
from accelerate import Accelerator
from runs import FIELDS, KillAt, Killed, random_images, tiny_model
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

from hf_efficient import (
    CompressivePerformerConfig,
    CompressivePerformerForCausalLM,
    HuggingGreenViTConfig,
    HuggingGreenViTForObjectDetection,
)
from hf_efficient.data.augmentation import Augmentation
from hf_efficient.data.collators import take_batch
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.training import (
    AverageCallback,
    BalancedSampler,
    EpochCallback,
    EpochSampler,
    LanguageModelScores,
    MovingAverage,
    PatchSelectionCallback,
    SealCallback,
    classification_scores,
    detection_scores,
    newest_intact,
    read_queries,
)

pytestmark = pytest.mark.usefixtures("quickly")
LOOKS = {"mean": 0.5, "std": 0.25}


class Ordered(Trainer):
    def _get_train_sampler(self, train_dataset=None):
        return EpochSampler(len(self.train_dataset), seed=0)


class Balanced(Trainer):
    def _get_train_sampler(self, train_dataset=None):
        return BalancedSampler(self.train_dataset.images.labels, classes_per_batch=2, images_per_class=4)


class Epochs(TrainerCallback):
    """What model and data take for the epoch at each step."""

    def __init__(self):
        self.of_model, self.of_data = [], []

    def on_step_end(self, args, state, control, model=None, train_dataloader=None, **kwargs):
        self.of_model.append(int(model.vit.selector.epoch))
        self.of_data.append(train_dataloader.dataset.epoch)


def plain_trainer(folder, *callbacks, model=None, trainer_class=Trainer, **arguments):
    defaults = {"num_train_epochs": 3, "per_device_train_batch_size": 8, "save_strategy": "no", "seed": 0}
    augmentation = Augmentation(flip=True, crop=1)
    return trainer_class(
        tiny_model() if model is None else model,
        TrainingArguments(
            str(folder),
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
            remove_unused_columns=False,
            **{**defaults, **arguments},
        ),
        data_collator=take_batch,
        train_dataset=ImageBatches(random_images(16), **LOOKS, augmentation=augmentation, seed=0),
        eval_dataset=ImageBatches(random_images(9, seed=1), **LOOKS),
        callbacks=list(callbacks),
        compute_metrics=lambda p: classification_scores(p.predictions.argmax(-1), p.label_ids),
    )


@pytest.mark.parametrize("callback", [EpochCallback, PatchSelectionCallback])
def test_epochs_are_told(callback, tmp_path):
    epochs = Epochs()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "prob=")
        plain_trainer(tmp_path, callback(), epochs).train()
    assert epochs.of_model == epochs.of_data == [0, 0, 1, 1, 2, 2]


def test_who_forgets_is_warned(tmp_path):
    with pytest.warns(UserWarning, match="nobody says which it is: add PatchSelectionCallback"):
        plain_trainer(tmp_path, max_steps=2).train()


@pytest.mark.parametrize("told", [True, False])
def test_a_loop_of_accelerate(told):
    """Who forgets `set_epoch` is warned once."""
    model, accelerator = tiny_model(), Accelerator(cpu=True)
    batches = torch.utils.data.DataLoader(ImageBatches(random_images(16), **LOOKS), 8, collate_fn=take_batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    model.train()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for epoch in range(3):
            if told:
                accelerator.unwrap_model(model).set_epoch(epoch)
            for batch in batches:
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
    assert (model.selection_probability() < 0.5) == told
    assert len([each for each in warned if "nobody says which it is" in str(each.message)]) == (not told)


@pytest.mark.parametrize("killed_at", [3, 4], ids=["within an epoch", "at its end"])
def test_exact_resume(killed_at, tmp_path):
    settings = {"trainer_class": Ordered, "save_strategy": "steps", "save_steps": 1}
    whole = plain_trainer(tmp_path / "whole", EpochCallback(), SealCallback(), **settings)
    whole.train()
    folder = tmp_path / "killed"
    with pytest.raises(Killed):
        plain_trainer(folder, EpochCallback(), SealCallback(), KillAt(killed_at, "saved"), **settings).train()
    (folder / f"checkpoint-{killed_at}" / "optimizer.pt").write_bytes(b"torn")
    with pytest.warns(UserWarning, match=rf"checkpoint-{killed_at} is skipped: optimizer.pt has 4 bytes"):
        checkpoint = newest_intact(folder)
    assert checkpoint.name == f"checkpoint-{killed_at - 1}"
    again = plain_trainer(folder, EpochCallback(), SealCallback(), **settings)
    again.train(resume_from_checkpoint=str(checkpoint))
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weight), name


def test_averages_samplers_and_scores_with_a_model_of_transformers(tmp_path):
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = ViTForImageClassification(ViTConfig(**sizes, intermediate_size=8, num_labels=3))
    average, seen = MovingAverage(model, decay=0.5), []
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs["labels"]), with_kwargs=True)
    trainer = plain_trainer(tmp_path, AverageCallback(average), model=model, trainer_class=Balanced, max_steps=3)
    trainer.train()
    assert average.step == 3 and all(sorted(labels.bincount().tolist())[-2:] == [4, 4] for labels in seen)
    last = model.classifier.weight.detach().clone()
    with average.applied():
        assert not torch.equal(model.classifier.weight, last)
        assert set(trainer.evaluate()) >= {"eval_accuracy", "eval_micro_f1", "eval_macro_f1"}
    assert torch.equal(model.classifier.weight, last)


def train_and_score(folder, model, rows, compute_metrics, **options) -> dict:
    defaults = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "save_strategy": "no", "max_steps": 1}
    evaluation = {"per_device_eval_batch_size": 2, "eval_do_concat_batches": False}
    arguments = TrainingArguments(str(folder), **defaults, **evaluation, remove_unused_columns=False)
    trainer = Trainer(
        model, arguments, train_dataset=rows, eval_dataset=rows, compute_metrics=compute_metrics, **options
    )
    trainer.train()
    return trainer.evaluate()


def test_scores_of_detectors(tmp_path):
    model = HuggingGreenViTForObjectDetection(HuggingGreenViTConfig(**{**FIELDS, "prob": 0.0}, num_queries=2))
    truth = {"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.5, 0.5, 0.4, 0.2]])}
    rows = [{"pixel_values": torch.randn(3, 8, 8), "labels": truth} for _ in range(3)]

    def collate(rows):
        return {
            "pixel_values": torch.stack([row["pixel_values"] for row in rows]),
            "labels": [row["labels"] for row in rows],
        }

    def scores(prediction):
        found, wanted = [], []
        for (_, logits, boxes, *_), labels in zip(prediction.predictions, prediction.label_ids, strict=True):
            found += read_queries(torch.as_tensor(logits), torch.as_tensor(boxes))
            wanted += [
                {"boxes": torch.as_tensor(x["boxes"]), "labels": torch.as_tensor(x["class_labels"])} for x in labels
            ]
        assert len(found) == len(wanted) == 3
        return detection_scores(found, wanted)

    assert {"eval_map", "eval_map_50", "eval_iou"} <= set(
        train_and_score(tmp_path, model, rows, scores, data_collator=collate)
    )


def test_scores_of_language_models(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = CompressivePerformerForCausalLM(CompressivePerformerConfig(**sizes, segment_length=8, memory_length=8))
    tokens = torch.randint(256, (3, 16)).tolist()

    def scores(prediction):
        nats = 0.0
        for logits, labels in zip(prediction.predictions, prediction.label_ids, strict=True):
            logits, labels = torch.as_tensor(logits)[:, :-1], torch.as_tensor(labels)[:, 1:]
            nats += torch.nn.functional.cross_entropy(logits.mT, labels, reduction="sum").item()
        return {"bits_per_byte": LanguageModelScores(nats, 45, 45, 45).bits_per_byte}

    rows = [{"input_ids": row, "labels": row} for row in tokens]
    found = train_and_score(tmp_path, model, rows, scores)
    assert found["eval_bits_per_byte"] == pytest.approx(8, abs=0.5)
