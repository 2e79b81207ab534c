"""Progressive image sizes: what models get to see in training, and what is refused."""

import pytest
import torch
from runs import KillAt, Killed, assert_same, make_trainer, outcome, tiny_model
from transformers import GPT2Config, GPT2LMHeadModel

from hf_efficient import MobileViTv2Config, MobileViTv2ForImageClassification
from hf_efficient.training.errors import RunError
from hf_efficient.training.image_sizes import interpolates, resize_images

pytestmark = pytest.mark.usefixtures("quickly")


def note_sizes(model) -> dict[bool, list[int]]:
    """Rows of pixels in training (True) and in evaluation."""
    seen = {True: [], False: []}

    def note(module, args, kwargs):
        seen[module.training].append(kwargs["pixel_values"].shape[2])

    model.register_forward_pre_hook(note, with_kwargs=True)
    return seen


def test_images_grow_in_training_only(tmp_path):
    model = tiny_model()
    seen = note_sizes(model)
    make_trainer(tmp_path, model=model, max_steps=8, image_size_schedule={0: 4, 0.25: 6, 0.5: 8}).train()
    assert seen[True] == 2 * [4] + 2 * [6] + 4 * [8] and set(seen[False]) == {8}


def test_resumed_runs_end_the_same(tmp_path):
    settings = {"max_steps": 9, "image_size_schedule": {0: 4, 0.5: 8}, "gradient_accumulation_steps": 2}
    whole = make_trainer(tmp_path / "whole", **settings)
    whole.train()
    for step in (4, 6):
        with pytest.raises(Killed):
            make_trainer(tmp_path / "killed", KillAt(step), **settings).train(resume_from_checkpoint=True)
    killed = make_trainer(tmp_path / "killed", **settings)
    killed.train(resume_from_checkpoint=True)
    assert_same(outcome(killed), outcome(whole))


def test_a_batch_is_the_same_image_but_smaller():
    batch = {"pixel_values": torch.arange(4.0).view(1, 1, 2, 2).repeat_interleave(4, 2).repeat_interleave(4, 3)}
    smaller = resize_images({**batch, "labels": 3}, 2, interpolate=True)
    torch.testing.assert_close(smaller["pixel_values"].flatten(), torch.arange(4.0), atol=0.5, rtol=0)
    assert smaller["interpolate_pos_encoding"] and smaller["labels"] == 3
    assert resize_images(batch, 8, interpolate=True) is batch
    assert "interpolate_pos_encoding" not in resize_images(batch, 4, interpolate=False)


def test_what_does_not_fit_is_named(tmp_path):
    with pytest.raises(RunError, match="image_size_schedule: 5 pixels are no multiple of patch_size=2"):
        make_trainer(tmp_path, image_size_schedule={0: 4, 0.5: 5})
    words = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9))
    with pytest.raises(RunError, match="image_size_schedule is for models of images; GPT2LMHeadModel is none"):
        make_trainer(tmp_path, model=words, image_size_schedule={0: 4})
    fields = {"image_size": 32, "width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1], "num_labels": 3}
    convolutions = MobileViTv2ForImageClassification(MobileViTv2Config(**fields))
    assert not interpolates(convolutions) and interpolates(tiny_model())
    make_trainer(tmp_path, model=convolutions, image_size_schedule={0: 31})  # which take any size
