"""Batches of texts: the tokens are the tokenizer's, padding is on the right, what is too long is counted."""

import datasets
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_efficient.data.classifier_tokenizer import classifier_tokenizer
from hf_efficient.data.labelled_texts import LabelledTexts
from hf_efficient.data.length_sampler import LengthSampler
from hf_efficient.data.text_batches import TextBatches

TEXTS = ["the cat sat", "a dog", "the dog sat on the cat and the cat sat on the dog", "<pad> é", "sat"]
OTHERS = ["a cat", "the cat sat on the cat", "on", "sat the dog", "a"]


def labelled(pairs: bool = False) -> LabelledTexts:
    columns = {"text": TEXTS} | ({"pair": OTHERS} if pairs else {})
    return LabelledTexts(datasets.Dataset.from_dict(columns), torch.arange(5) % 2, ["no", "yes"])


def bert_tokenizer() -> PreTrainedTokenizerFast:
    """[CLS] a [SEP], and [CLS] a [SEP] b [SEP] with types of tokens, as BERT's."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *["the", "cat", "sat", "a", "dog", "on", "and"]]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **special)


def tokenizers() -> dict:
    found = {level: classifier_tokenizer(level, TEXTS, 300, 1) for level in ("byte", "bpe", "word", "symbol")}
    first = {f"{level}, first": classifier_tokenizer(level, TEXTS, 300, 1, True) for level in ("byte", "symbol")}
    return found | first | {"bert": bert_tokenizer()}


@pytest.mark.parametrize(("name", "tokenizer"), tokenizers().items())
def test_tokens_are_the_tokenizers(name, tokenizer):
    batches = TextBatches(labelled(), tokenizer, 64)
    batch = batches.__getitems__([2, 0, 3])
    expected = tokenizer([TEXTS[i] for i in (2, 0, 3)], padding=True, return_tensors="pt")
    assert torch.equal(batch["input_ids"], expected["input_ids"])
    assert torch.equal(batch["attention_mask"], expected["attention_mask"])
    assert batch["labels"].tolist() == [0, 0, 1] and batches.cut == 0
    assert batches.lengths.tolist() == [len(ids) for ids in tokenizer(TEXTS)["input_ids"]]
    assert "attention_mask" not in batches.__getitems__([1]), "nothing is padded"
    if "first" in name:
        assert (batch["input_ids"][:, 0] == tokenizer.cls_token_id).all()


@pytest.mark.parametrize("name", ["byte, first", "bert"])
def test_a_joined_pair_is_the_tokenizers(name):
    tokenizer = tokenizers()[name]
    batch = TextBatches(labelled(pairs=True), tokenizer, 64, joined=True).__getitems__([0, 1, 2])
    expected = tokenizer(TEXTS[:3], OTHERS[:3], padding=True, return_tensors="pt")
    assert set(batch) - {"labels"} == set(expected)
    for key, x in expected.items():
        assert torch.equal(batch[key], x), key


def test_a_long_pair_loses_of_the_longer_text():
    tokenizer = bert_tokenizer()
    batches = TextBatches(labelled(pairs=True), tokenizer, 9, joined=True)
    expected = tokenizer(TEXTS, OTHERS, truncation="longest_first", max_length=9)["input_ids"]
    found = batches.__getitems__(range(5))["input_ids"]
    assert [sum(row != 0).item() for row in found] == [len(ids) for ids in expected]
    assert found[1].tolist()[:9] == expected[1] and found[2].tolist()[:9] == expected[2]
    assert batches.cut == 2 and batches.longest == 17


def test_pairs_apart():
    batch = TextBatches(labelled(pairs=True), tokenizers()["byte"], 64).__getitems__([0, 4])
    assert batch["input_ids"].shape == (2, 2, 11) == batch["attention_mask"].shape
    assert bytes(batch["input_ids"][0, 0].tolist()) == b"the cat sat"
    assert batch["attention_mask"].sum(-1).tolist() == [[11, 5], [3, 1]]


def test_what_is_longer_is_cut_and_counted():
    batches = TextBatches(labelled(), tokenizers()["bert"], 5)
    assert batches.cut == 1 and batches.longest == 15
    assert batches.__getitems__([2])["input_ids"].tolist() == [[2, 4, 8, 6, 3]], "[CLS], three words, [SEP]"
    with pytest.raises(ValueError, match="max_length=2 leaves no room for a text"):
        TextBatches(labelled(), tokenizers()["bert"], 2)


def test_evaluation_reads_the_longest_first():
    batches = TextBatches(labelled(), tokenizers()["byte"], 64, by_length=True)
    assert batches.lengths.tolist() == sorted(batches.lengths, reverse=True)
    first = batches[0]
    assert bytes(first["input_ids"].tolist()).decode() == TEXTS[2] and first["labels"] == 0
    found = batches.__getitems__(range(5))
    assert sorted(found["labels"].tolist()) == [0, 0, 0, 1, 1]


def test_a_text_without_tokens_is_named():
    tokenizer = tokenizers()["bert"]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(" é", "removed")
    texts = LabelledTexts(datasets.Dataset.from_dict({"text": ["the", " é"]}), torch.arange(2), ["a", "b"])
    with pytest.raises(ValueError, match="the text ' é' has no tokens: leave it out, or choose another level"):
        TextBatches(texts, tokenizer, 9)


# The order


@pytest.fixture(scope="module")
def lengths():
    return np.random.default_rng(0).lognormal(5, 1, 1003).astype(int) + 1


def test_batches_are_of_like_length_and_hold_every_text_once(lengths):
    sampler = LengthSampler(lengths, 10, seed=3)
    order = list(sampler)
    assert len(order) == len(sampler) == 1000 and len(set(order)) == 1000
    batches = lengths[order].reshape(-1, 10)
    at_random = lengths[np.random.default_rng(1).permutation(1003)[:1000]].reshape(-1, 10)
    padded, padded_at_random = (10 * x.max(1).sum() / x.sum() for x in (batches, at_random))
    assert padded < 1.2 < 2 < padded_at_random
    assert abs(np.corrcoef(np.arange(100), batches.max(1))[0, 1]) < 0.3, "long and short ones come mixed"
    whole = LengthSampler(lengths, 10, seed=3, whole_batches=False)
    assert sorted(whole) == list(range(1003)) and len(whole) == 1003


def test_the_order_is_a_function_of_seed_and_epoch(lengths):
    sampler = LengthSampler(lengths, 10, seed=1)
    first = list(sampler)
    assert list(sampler) == first != list(LengthSampler(lengths, 10, seed=2))
    sampler.set_epoch(1)
    second = list(sampler)
    assert second != first
    again = LengthSampler(lengths, 10, seed=1)
    again.set_epoch(1)
    assert list(again) == second


def test_fewer_texts_than_a_batch():
    assert sorted(LengthSampler([3, 1, 2], 8)) == [0, 1, 2]
