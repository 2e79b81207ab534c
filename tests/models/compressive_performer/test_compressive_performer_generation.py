"""transformers' generate(): every way of calling it gives what recomputing the whole text gives."""

import copy
import time

import pytest
import torch
from compressive_performer_cases import ARMS, make, text
from torch.testing import assert_close
from transformers import GenerationConfig, PreTrainedTokenizerFast, TextStreamer, pipeline

NEW = 30
every_arm = pytest.mark.parametrize("fields", ARMS.values(), ids=ARMS)


@torch.no_grad()
def is_greedy(model, ids, prompt, new=NEW) -> bool:
    """Whether each of `new` tokens after the prompt is the likeliest, when the whole text is read at once."""
    likeliest = model(ids).logits[:, prompt - 1 : -1].argmax(-1)
    return ids.shape[1] == prompt + new and torch.equal(ids[:, prompt:], likeliest)


def greedy(model, ids, new=NEW, **kwargs):
    return model.generate(ids, max_new_tokens=new, do_sample=False, **kwargs)


@every_arm
@pytest.mark.parametrize("prompt", [1, 8, 19])
def test_greedy_is_recomputation(fields, prompt):
    model, ids = make(**fields), text(2, prompt)
    found = greedy(model, ids)
    assert torch.equal(found[:, :prompt], ids) and is_greedy(model, found, prompt)
    assert torch.equal(greedy(model, ids, prefill_chunk_size=3), found)


@every_arm
def test_the_whole_text_again_for_every_token(fields):
    model, ids = make(**fields), text(2, 19)
    assert torch.equal(greedy(model, ids, use_cache=False), greedy(model, ids))


@every_arm
def test_left_padded_prompts_are_as_if_alone(fields):
    model, ids = make(**fields, pad_token_id=0), text(3, 21)
    mask = torch.ones_like(ids)
    mask[0, :13], mask[2, :20] = 0, 0
    together = greedy(model, ids, attention_mask=mask)
    chunked = greedy(model, ids, attention_mask=mask, prefill_chunk_size=5)
    for row, start in enumerate((13, 0, 20)):
        assert is_greedy(model, together[row : row + 1, start:], prompt=21 - start)
        assert torch.equal(chunked[row], together[row])


@pytest.mark.parametrize(
    ("fields", "options"),
    [({}, {"num_beams": 3}), ({"attention": "softmax"}, {"num_beams": 4, "num_return_sequences": 2})],
    ids=["performer", "softmax"],
)
def test_beams_are_recomputation(fields, options):
    model, ids = make(**fields, pad_token_id=0), text(2, 13)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    found = [greedy(model, ids, attention_mask=mask, use_cache=use_cache, **options) for use_cache in (True, False)]
    assert torch.equal(*found)


def test_sampling_is_recomputation():
    model, ids = make(), text(2, 13)
    found = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        options = {"do_sample": True, "top_k": 5, "temperature": 0.8, "num_return_sequences": 2}
        found.append(model.generate(ids, max_new_tokens=NEW, use_cache=use_cache, **options))
    assert torch.equal(*found) and found[0].shape == (4, 13 + NEW)


def test_it_goes_on_from_a_returned_cache():
    model, ids = make(), text(2, 13)
    first = greedy(model, ids, new=10, return_dict_in_generate=True)
    cache = first.past_key_values
    assert cache.get_seq_length() == 13 + 10 - 1
    second = greedy(model, first.sequences, new=NEW - 10, past_key_values=cache)
    assert torch.equal(second[:, :23], first.sequences) and is_greedy(model, second, 13)
    assert cache.get_seq_length() == 13 + NEW - 1


def test_a_prefix_is_read_once_and_used_often():
    model, ids = make(), text(1, 30)
    with torch.no_grad():
        prefix = model(ids, use_cache=True).past_key_values
    for seed in (4, 5):
        prompt = torch.cat([ids, text(1, 7, seed=seed)], 1)
        found = greedy(model, prompt, past_key_values=copy.deepcopy(prefix))
        assert torch.equal(found[:, :37], prompt) and is_greedy(model, found, 37)


def test_from_embeddings():
    model, ids = make(), text(2, 13)
    embeds = model.get_input_embeddings()(ids)
    assert is_greedy(model, torch.cat([ids, greedy(model, None, inputs_embeds=embeds)], 1), 13)


def test_scores_and_hidden_states_are_returned():
    model, ids = make(), text(2, 13)
    outputs = greedy(model, ids, new=5, return_dict_in_generate=True, output_logits=True, output_hidden_states=True)
    with torch.no_grad():
        expected = model(outputs.sequences, output_hidden_states=True)
    assert_close(torch.stack(outputs.logits, 1).double(), expected.logits[:, 12:-1], atol=1e-5, rtol=1e-5)
    assert [len(states) for states in outputs.hidden_states] == [3] * 5
    assert outputs.hidden_states[0][1].shape == (2, 13, 16) and outputs.hidden_states[1][1].shape == (2, 1, 16)
    for step, states in enumerate(outputs.hidden_states[1:], start=13):
        for found, whole in zip(states, expected.hidden_states, strict=True):
            assert_close(found[:, 0], whole[:, step])


def test_logits_to_keep():
    model, ids = make(), text(2, 21)
    with torch.no_grad():
        everything = model(ids).logits
        assert_close(model(ids, logits_to_keep=1).logits, everything[:, -1:])
        assert_close(model(ids, logits_to_keep=5).logits, everything[:, -5:])
        assert_close(model(ids, logits_to_keep=torch.tensor([3, 9])).logits, everything[:, [3, 9]])


def test_assisted_decoding_is_refused():
    model = make()
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        greedy(model, text(1, 9), assistant_model=make(seed=1))
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        greedy(model, text(1, 9), prompt_lookup_num_tokens=2)


def test_an_unknown_token_in_a_prompt_is_named():
    with pytest.raises(ValueError, match="input_ids holds 99"):
        greedy(make(), torch.tensor([[1, 99]]))
    with pytest.raises(ValueError, match="empty"):
        greedy(make(), torch.zeros(1, 0, dtype=torch.long))


def test_it_stops_at_the_end_token():
    model, ids = make(pad_token_id=0), text(3, 9)
    free = greedy(model, ids)
    end = int(free[0, 15])
    stopped = greedy(model, ids, eos_token_id=end)
    for row, full in zip(stopped, free, strict=True):
        ends = (full[9:] == end).nonzero()
        length = 9 + int(ends[0]) + 1 if len(ends) else full.shape[0]
        assert torch.equal(row[:length], full[:length])


def tokenizer():
    """Characters."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = ["<pad>", *"abcdefghijklmnopqrstuv"]
    backend = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", padding_side="left")


def test_the_pipeline_writes_what_the_model_does():
    model, letters = make(torch.float32, pad_token_id=0), tokenizer()
    write = pipeline("text-generation", model=model, tokenizer=letters)
    prompts = ["abcabcabcabc", "hello", "q"]
    options = {"max_new_tokens": 12, "do_sample": False, "return_full_text": False}
    alone = [write(prompt, **options)[0]["generated_text"] for prompt in prompts]
    assert len(set(alone)) > 1
    together = [out[0]["generated_text"] for out in write(prompts, batch_size=3, **options)]
    assert together == alone


def test_streaming_writes_token_by_token(capsys):
    model, letters = make(torch.float32), tokenizer()
    ids = letters("abcab", return_tensors="pt").input_ids
    found = greedy(model, ids, streamer=TextStreamer(letters))
    assert capsys.readouterr().out.split() == letters.decode(found[0]).split()


def test_a_generation_config_is_saved_and_used(tmp_path):
    model = make(torch.float32)
    model.generation_config = GenerationConfig(max_new_tokens=4, do_sample=False)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert again.generate(text(1, 5)).shape == (1, 9)


@pytest.mark.slow
@torch.no_grad()
def test_twenty_thousand_tokens_take_constant_time_and_memory():
    """Time per token over the last hundreds of tokens as over the first; the state's size to the byte."""
    model = make(torch.float32, segment_length=64, memory_length=64, compressed_memory_length=96, compression_rate=4)
    ids, spent, sizes, cache = text(1, 608), [], set(), None  # enough to fill the memory
    for part in range(12):
        if part == 6:  # most of them are read, which is quicker than to write them
            ids = torch.cat([ids, text(1, 17_000)], 1)
            cache = model(ids[:, cache.get_seq_length() : -1], past_key_values=cache, logits_to_keep=1).past_key_values
        start = time.process_time()
        outputs = greedy(model, ids, new=200, past_key_values=cache, return_dict_in_generate=True)
        spent.append(time.process_time() - start)
        ids, cache = outputs.sequences, outputs.past_key_values
        tensors = [x for layer in cache.layers for x in (*layer.memory[:3], *(layer.memory.state or {}).values())]
        sizes.add(sum(x.untyped_storage().nbytes() for x in tensors))
    assert ids.shape == (1, 20_008) and cache.get_seq_length() == 20_007
    assert len(sizes) == 1, sizes
    assert sorted(spent[-5:])[2] < 1.5 * sorted(spent[1:6])[2], spent
