"""The memory as a state: its contents and lengths, what a cache can be asked to do, and memories that don't fit."""

import copy

import pytest
import torch
from compressive_performer_cases import ARMS, SHAPES, in_calls, make, text
from compressive_performer_reference import Reference
from torch.testing import assert_close
from transformers import DynamicCache

from hf_efficient.models.compressive_performer.cache import CompressiveMemory, CompressiveMemoryLayer

EVERY = {**ARMS, **SHAPES}


@pytest.mark.parametrize("fields", EVERY.values(), ids=EVERY)
def test_contents_after_each_segment(fields):
    model, ids = make(**fields), text(1, 48)
    reference, memory = Reference(model), None
    with torch.no_grad():
        for segment in ids.split(8, 1):
            reference.segment(segment[0])
            memory = model(segment, memory=memory).memory
            for layer, (compressed, recent) in zip(memory.layers, reference.memory, strict=True):
                for found, expected in ((layer.memory.compressed, compressed), (layer.memory.recent, recent)):
                    assert found.shape == (1, len(expected), 16)
                    if expected:
                        assert_close(found[0], torch.stack(expected), atol=1e-9, rtol=1e-9)
                assert not layer.memory.compressed.requires_grad


def test_the_open_segment_is_kept_until_it_is_full():
    model, ids = make(), text(1, 21)
    _, memory = in_calls(model, ids, [3, 9, 17, 18])
    layer = memory.layers[0]
    assert layer.seen == [21] and layer.columns == 21
    kept = layer.memory
    assert kept.segment.shape == (1, 8, 16) and kept.recent.shape == (1, 8, 16) and kept.compressed.shape == (1, 4, 16)
    with torch.no_grad():
        normed = model.model.layers[0].layernorm_before(model.model.embed_tokens(ids))
    assert_close(kept.segment[:, :5], normed[:, 16:])
    assert_close(kept.recent, normed[:, 8:16])


def size(memory):
    tensors = [x for layer in memory.layers for x in (*layer.memory[:3], *(layer.memory.state or {}).values())]
    return sum(x.untyped_storage().nbytes() for x in tensors)


@pytest.mark.parametrize("fields", [{}, {"attention": "linear_elu"}], ids=["performer", "linear_elu"])
def test_its_size_does_not_depend_on_the_tokens_seen(fields):
    model = make(**fields)
    sizes = set()
    for length in (43, 44, 91, 331):
        sizes.add(size(in_calls(model, text(2, length), [length - 2, length - 1])[1]))
    assert len(sizes) == 1


def test_the_cache_is_what_generate_builds():
    model = make()
    cache = DynamicCache(config=model.config)
    assert len(cache) == 2 and all(isinstance(layer, CompressiveMemoryLayer) for layer in cache.layers)
    assert cache.get_seq_length() == 0 and not cache.is_initialized and cache.batch_size == -1
    assert not cache.is_compileable and not cache.is_croppable and cache.get_max_length() == -1
    outputs = model(text(3, 11), past_key_values=cache)
    assert outputs.past_key_values is cache and outputs.memory is cache
    assert cache.get_seq_length() == 11 and cache.batch_size == 3
    assert cache.get_mask_sizes(5, 0) == (16, 0)
    assert isinstance(model(text(3, 11)).memory, CompressiveMemory)
    assert model(text(3, 11), use_cache=False).past_key_values is None
    assert model(text(3, 11), use_cache=False).memory.get_seq_length() == 11


ROWS = {
    "reorder_cache": lambda cache, rows: cache.reorder_cache(rows),
    "batch_select_indices": lambda cache, rows: cache.batch_select_indices(rows),
}


@pytest.mark.parametrize("fields", [{}, {"attention": "softmax"}], ids=["performer", "softmax"])
@pytest.mark.parametrize("change", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 0], [0, 1, 2], [2, 2]], ids=str)
def test_rows_are_picked(change, rows, fields):
    model, ids = make(**fields), text(3, 60)
    mask = torch.ones(3, 21, dtype=torch.long)
    mask[1, :6] = 0
    _, cache = in_calls(model, ids[:, :21], [12], mask=mask)
    change(cache, torch.tensor(rows))
    with torch.no_grad():
        logits = model(ids[rows, 21:], past_key_values=cache).logits
    for i, row in enumerate(rows):
        expected = model(ids[row : row + 1, 6 if row == 1 else 0 :]).logits[:, -39:]
        assert_close(logits[i : i + 1], expected, atol=1e-9, rtol=1e-9)


def test_rows_are_repeated_and_picked_by_a_mask():
    model, ids = make(), text(2, 40)
    _, cache = in_calls(model, ids[:, :21], [])
    cache.batch_repeat_interleave(2)
    expected = model(ids).logits[:, 21:]
    with torch.no_grad():
        logits = model(ids[:, 21:].repeat_interleave(2, 0), past_key_values=copy.deepcopy(cache)).logits
        assert_close(logits, expected.repeat_interleave(2, 0))
        cache.batch_select_indices(torch.tensor([False, False, True, False]))
        assert_close(model(ids[1:, 21:], past_key_values=cache).logits, expected[1:])


def test_it_cannot_be_cropped():
    _, cache = in_calls(make(), text(1, 9), [])
    cache.crop(0)
    with pytest.raises(ValueError, match="can't be cropped"):
        cache.crop(-1)


def test_it_can_be_saved_and_loaded(tmp_path):
    model, ids = make(), text(2, 60)
    _, memory = in_calls(model, ids[:, :30], [])
    torch.save(memory.state_dict(), tmp_path / "memory.pt")
    loaded = CompressiveMemory.from_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True), model.config)
    with torch.no_grad():
        expected = model(ids[:, 30:], memory=memory)
        found = model(ids[:, 30:], memory=loaded)
    assert_close(found.logits, expected.logits)
    assert loaded.get_seq_length() == 30 and found.memory.get_seq_length() == 60


@pytest.mark.parametrize("name", ["memory", "past_key_values"])
def test_memories_that_do_not_fit_are_named(name):
    model, ids = make(), text(2, 11)
    _, memory = in_calls(model, ids, [])

    def refused(model, memory, message, rows=2):
        with pytest.raises(ValueError, match=message):
            model(ids[:rows], **{name: memory})

    refused(model, memory, f"{name} is of batch size 2, but input_ids has 1 rows", rows=1)
    refused(make(torch.float32), memory, f"{name} holds torch.float64, but the model computes in torch.float32")
    refused(make(segment_length=10), memory, f"{name} was made with segment_length=8, the model has 10")
    refused(make(memory_length=6), memory, "memory_length=8, the model has 6")
    refused(make(compressed_memory_length=4), memory, "compressed_memory_length=6, the model has 4")
    refused(make(attention="softmax"), memory, "attention='performer', the model has 'softmax'")
    refused(make(num_hidden_layers=3), memory, f"{name} has 2 layers, not num_hidden_layers=3")
    refused(make(hidden_size=32), memory, "hidden_size=16, the model has 32")
    refused(model, DynamicCache(), f"{name} has 0 layers|no memory of a CompressivePerformer")
    refused(model, (None, None), f"{name} has 0 layers|no memory of a CompressivePerformer")
    from_other = CompressiveMemory.from_state_dict(
        in_calls(make(hidden_size=32), ids, [])[1].state_dict(), model.config
    )
    refused(model, from_other, f"{name} is 32 wide, but the model has hidden_size=16")
    with pytest.raises(ValueError, match="either past_key_values or memory"):
        model(ids, memory=memory, past_key_values=memory)
    with pytest.raises(ValueError, match="reset is of batch size 3, but input_ids has 2 rows"):
        model(ids, reset=torch.ones(3, dtype=torch.bool))


def test_bad_input_is_named():
    model = make()
    for wrong in (23, -1, 1000):
        with pytest.raises(
            ValueError, match=rf"input_ids holds {wrong}, but the tokens are 0 to 22 \(vocab_size=23\)"
        ):
            model(torch.tensor([[1, wrong, 2]]))
    with pytest.raises(ValueError, match=r"input_ids of \(1, 0\) is empty"):
        model(torch.zeros(1, 0, dtype=torch.long))
    with pytest.raises(ValueError, match=r"input_ids of \(0, 4\) is empty"):
        model(torch.zeros(0, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"input_ids must be \(batch, tokens\), got \(4,\)"):
        model(torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model()
    with pytest.raises(ValueError, match=r"attention_mask must be \(2, 5\)"):
        model(text(2, 5), attention_mask=torch.ones(2, 4))
    with pytest.raises(ValueError, match=r"attention_mask must be \(2, 5\)"):
        model(text(2, 5), attention_mask=torch.ones(2, 1, 5, 5))
    with pytest.raises(ValueError, match="output_attentions"):
        model(text(2, 5), output_attentions=True)
