"""Patch selection as a schedule over a run: in any Trainer, exact under resume, and refused in words."""

import pytest
import torch
from runs import KillAt, Killed, assert_same, make_trainer, outcome, tiny_model
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

import hf_efficient.training
from hf_efficient.data.collators import take_batch
from hf_efficient.training import PatchSelectionCallback
from hf_efficient.training.errors import RunError
from hf_efficient.training.image_stages import ContrastiveModel

pytestmark = pytest.mark.usefixtures("quickly")
FEW_FIRST = {0: 0.25, 0.5: 0.5, 0.75: 1.0}


class TokensSeen(TrainerCallback):
    """How many tokens entered the first block, in training and in evaluation."""

    def __init__(self, model):
        self.training, self.evaluation = [], []
        model.vit.layers[0].register_forward_pre_hook(self.note)

    def note(self, layer, args):
        (self.training if layer.training else self.evaluation).append(args[0].shape[1] - 1)


def test_a_plain_trainer_follows_it(tmp_path):
    model = tiny_model(prob=0.0)  # 16 patches, of which none would be dropped
    seen, images = TokensSeen(model), make_trainer(tmp_path / "other", model=tiny_model()).train_dataset
    arguments = TrainingArguments(
        str(tmp_path),
        max_steps=4,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to="none",
        remove_unused_columns=False,
        save_strategy="no",
        gradient_accumulation_steps=2,
    )
    callback = PatchSelectionCallback(kept=FEW_FIRST)
    Trainer(model, arguments, take_batch, train_dataset=images, callbacks=[callback]).train()
    assert seen.training == 4 * [4] + 2 * [8] + 2 * [16]  # two batches a step
    assert model.train()(torch.zeros(2, 3, 8, 8)).patch_indices is None  # as before


def test_our_trainer_follows_its_arguments(tmp_path):
    model = tiny_model(select_at_eval=True)
    seen = TokensSeen(model)
    make_trainer(tmp_path, model=model, max_steps=8, patch_schedule=FEW_FIRST).train()
    assert seen.training == 4 * [4] + 2 * [8] + 2 * [16]
    assert set(seen.evaluation) == {8}  # top_k: the schedule is for training


def test_the_probability_alone(tmp_path):
    model = tiny_model()
    seen = TokensSeen(model)
    make_trainer(tmp_path, model=model, max_steps=8, patch_probability={0: 0, 0.5: 1}).train()
    assert seen.training == 4 * [16] + 4 * [8]


def test_half_of_the_batches(tmp_path):
    model = tiny_model()
    seen = TokensSeen(model)
    make_trainer(tmp_path, model=model, max_steps=30, patch_schedule={0: 0.25}, patch_probability={0: 0.5}).train()
    assert set(seen.training) == {4, 16} and 6 < seen.training.count(4) < 24


def test_resumed_runs_end_the_same(tmp_path):
    settings = {"max_steps": 13, "patch_schedule": FEW_FIRST, "patch_probability": {0: 0.8, 0.6: 0.3}}
    whole = make_trainer(tmp_path / "whole", **settings)
    whole.train()
    for step in (4, 8, 11):
        with pytest.raises(Killed):
            make_trainer(tmp_path / "killed", KillAt(step), **settings).train(resume_from_checkpoint=True)
    killed = make_trainer(tmp_path / "killed", **settings)
    killed.train(resume_from_checkpoint=True)
    assert_same(outcome(killed), outcome(whole))


def test_models_that_keep_all_patches_are_refused(tmp_path):
    with pytest.raises(RunError, match="needs a model that selects patches: heuristic='none' keeps all patches"):
        make_trainer(tmp_path, model=tiny_model(heuristic="none"), patch_schedule=FEW_FIRST)
    sizes = {"image_size": 8, "patch_size": 2, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    vit = ViTForImageClassification(ViTConfig(**sizes, intermediate_size=16))
    with pytest.raises(RunError, match="as HuggingGreenViT does; ViTForImageClassification doesn't"):
        make_trainer(tmp_path, model=vit, patch_probability={0: 1})
    frozen = tiny_model()
    frozen.freeze_backbone()
    with pytest.raises(RunError, match="needs a backbone that is trained"):
        make_trainer(tmp_path, model=frozen, patch_schedule=FEW_FIRST)
    with pytest.raises(RunError, match="ViTModel doesn't"):
        ContrastiveModel(vit.vit).set_patch_share(0.5)


def test_contrast_of_few_patches():
    model = ContrastiveModel(tiny_model().vit)
    model.set_patch_share(0.25, 1.0)
    assert model.encoder.train()(torch.zeros(2, 3, 8, 8)).patch_indices.shape == (2, 4)


def test_public_names():
    for name in hf_efficient.training.__all__:
        assert getattr(hf_efficient.training, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Trainer'"):
        hf_efficient.training.Trainer  # noqa: B018
