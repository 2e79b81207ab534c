"""What every family refuses by name, and what it survives: impossible sizes, NaN, extremes, nothing at all, kills."""

import os
import re
import resource
import signal
from dataclasses import fields

import pytest
import torch
from families import HEADS, VISION, VISION_HEADS, head_id, inputs, main_output, tiny_config, tiny_model
from safetensors import SafetensorError
from transformers import pipeline

from hf_efficient.data.tokenization import build_tokenizer
from hf_efficient.models.auto import FAMILIES

heads = pytest.mark.parametrize("head", HEADS, ids=head_id)
vision_heads = pytest.mark.parametrize("head", VISION_HEADS, ids=head_id)
families = pytest.mark.parametrize("family", FAMILIES)
# Fields that may be below 0: a seed, a label that is left out, and one that only transformers' own models read.
SIGNED = {"selection_seed", "semantic_loss_ignore_index", "chunk_size_feed_forward"}


def language_model():
    return tiny_model("compressive_performer", "AutoModelForCausalLM")


def embeddings(rows: int = 3) -> torch.Tensor:
    return torch.randn(rows, 30, 16, generator=torch.Generator().manual_seed(1))


# Config


@families
def test_negative_sizes_are_named(family):
    """Every whole number of a config, when the config is made and not when torch fails on it."""
    config = tiny_config(family)
    sizes = {f.name: getattr(config, f.name) for f in fields(config) if type(getattr(config, f.name)) is int}
    assert len(sizes) > 5
    for name in sizes.keys() - SIGNED:
        with pytest.raises(ValueError, match=name):
            tiny_config(family, **{name: -max(1, sizes[name])})


@pytest.mark.parametrize("family", [name for name in VISION if hasattr(tiny_config(name), "patch_size")])
def test_a_patch_larger_than_the_image_is_named(family):
    with pytest.raises(ValueError, match=r"image_size=\d+.*patch_size=512|patch_size=512.*image_size=\d+"):
        tiny_config(family, patch_size=512)


@families
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e10, -1e-5, 0.0])
@pytest.mark.parametrize("name", ["initializer_range", "layer_norm_eps"])
def test_scales_out_of_range_are_named(family, name, value):
    with pytest.raises(ValueError, match=f"{name}={re.escape(repr(value))} must be (positive|finite|at most 1)"):
        tiny_config(family, **{name: value})


@families
def test_no_number_of_a_config_is_nan(family):
    config = tiny_config(family)
    for name in [f.name for f in fields(config) if type(getattr(config, f.name)) is float]:
        with pytest.raises(ValueError, match=f"{name}=nan must "):
            tiny_config(family, **{name: float("nan")})


@families
@pytest.mark.parametrize("value", ["ten", 10**9, -1, 2.0, True], ids=repr)
def test_what_is_no_number_of_labels_is_named(family, value):
    with pytest.raises(ValueError, match=f"num_labels={value!r} must be a whole number, at most 10,000,000"):
        tiny_config(family, num_labels=value)


@families
@pytest.mark.parametrize("name", ["to_dict", "validate", "save_pretrained", "misfit"])
def test_a_key_that_is_a_method_is_refused(family, name):
    with pytest.raises(ValueError, match=f"'{name}' is a method of "):
        tiny_config(family, **{name: 1})
    with pytest.raises(ValueError, match=f"'{name}' is a method of "):
        type(tiny_config(family)).from_dict({**tiny_config(family).to_dict(), name: 1})


# Numbers


@vision_heads
def test_an_image_of_nan_leaves_the_others_alone(head):
    model = tiny_model(*head)
    batch = inputs(model)
    expected = main_output(model(**batch))
    batch["pixel_values"][1] = torch.nan
    torch.testing.assert_close(main_output(model(**batch))[[0, 2]], expected[[0, 2]])


def test_a_text_of_nan_leaves_the_others_alone():
    model, x = language_model(), embeddings()
    expected = model(inputs_embeds=x).logits
    x[1] = torch.nan
    logits = model(inputs_embeds=x).logits
    torch.testing.assert_close(logits[[0, 2]], expected[[0, 2]])
    assert logits[1].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@vision_heads
def test_extreme_images_have_finite_outputs_in_half_precision(head, dtype):
    """A thousand times what normalised pixels are."""
    model = tiny_model(*head).to(dtype)
    batch = {name: (1000 * x).to(dtype) if x.is_floating_point() else x for name, x in inputs(model).items()}
    with torch.no_grad():
        assert main_output(model(**batch)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_extreme_embeddings_have_finite_logits_in_half_precision(dtype):
    model = language_model().to(dtype)
    with torch.no_grad():
        assert model(inputs_embeds=(1000 * embeddings()).to(dtype)).logits.isfinite().all()


@families
def test_nothing_stays_on_the_meta_device(family, tmp_path):
    model = tiny_model(family)
    with torch.device("meta"):
        meta = type(model)(model.config)
    assert all(p.is_meta for p in meta.parameters())
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert not [name for name, x in (*again.named_parameters(), *again.named_buffers()) if x.is_meta]


# Nothing


@heads
def test_arrays_are_named(head):
    model = tiny_model(*head)
    batch = inputs(model, labels=True)
    for name in [name for name, value in batch.items() if isinstance(value, torch.Tensor)]:
        with pytest.raises(TypeError, match=f"{name} must be a torch.Tensor, got numpy.ndarray"):
            model(**{**batch, name: batch[name].numpy()})


def test_arrays_of_tokens_are_named():
    model, tokens = language_model(), torch.ones(2, 5, dtype=torch.int64)
    batch = {"input_ids": tokens, "attention_mask": tokens}
    for name in batch:
        with pytest.raises(TypeError, match=f"{name} must be a torch.Tensor, got numpy.ndarray"):
            model(**{**batch, name: tokens.numpy()})


@heads
def test_an_empty_batch_is_named(head):
    model = tiny_model(*head)
    with pytest.raises(ValueError, match=r"(pixel_values|input_ids of) \(0, .*\d+\) is empty"):
        model(**{name: x[:0] for name, x in inputs(model).items()})


def test_an_empty_prompt_is_an_error_and_a_long_one_is_none(tmp_path):
    """There is no longest text: memory is compressed, not exceeded."""
    model, tokenizer = language_model(), build_tokenizer("byte")
    with pytest.raises(ValueError, match=r"input_ids of \(1, 0\) is empty"):
        model.generate(**tokenizer("", return_tensors="pt"), max_new_tokens=1)
    write = pipeline("text-generation", model=model, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="input_ids"):
        write("", max_new_tokens=1)
    with torch.no_grad():
        assert model(torch.randint(256, (1, 500))).logits.shape == (1, 500, 256)


# Saving


def save_within(model, folder, limit: int, on_excess) -> int:
    """The exit code of a process that saves and can't write more than `limit` bytes into a file."""
    process = os.fork()
    if process == 0:
        signal.alarm(60)
        signal.signal(signal.SIGXFSZ, on_excess)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            model.save_pretrained(folder)
        except (OSError, SafetensorError):
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.parametrize("share", [0.001, 0.5, 0.99], ids=["in the code", "in the weights", "at their end"])
@pytest.mark.parametrize("family", ["kerformer_vit", "compressive_performer"])
def test_a_save_that_is_killed_or_finds_no_room_leaves_the_model_before(family, share, tmp_path):
    """The kernel kills the process in the middle of a write, or the write fails."""
    model = tiny_model(family)
    model.save_pretrained(tmp_path)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    limit = int(share * (tmp_path / "model.safetensors").stat().st_size)
    assert save_within(model, tmp_path, limit, signal.SIG_DFL) == -signal.SIGXFSZ
    assert list(tmp_path.glob(".*tmp*")), "nothing was being written"
    assert save_within(model, tmp_path, limit, signal.SIG_IGN) == 3
    for name, x in type(model).from_pretrained(tmp_path).state_dict().items():
        assert torch.equal(x, before[name]), name
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob(".*tmp*"))
    again = type(model).from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(x, again[name]) for name, x in model.state_dict().items())
