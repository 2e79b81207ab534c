"""Words: what is decoded is the text, up to what is unknown, and sentences end where they end."""

import re

import pytest
from transformers import AutoTokenizer

from hf_efficient.data.text import load_text, split_text
from hf_efficient.data.tokenization import build_tokenizer, unknown_rate
from hf_efficient.data.word_tokenizer import SENTENCE_END

DOCS = split_text(load_text("pydocs")[:200_000], "word", "standard")
STRANGE = "Käse čaj — 日本語 \x00\t 🐎\n\n  two  spaces </s> <pad> <unk> </w> Ā \u00a0\u2028 it's d’accord_9\r\n"


def tokens(tokenizer, text):
    return tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])


def test_a_word_has_the_space_before_it():
    tokenizer = build_tokenizer("word", b"The cat's mat (a mat).\n" * 5 + b"rare\n", min_count=5)
    assert tokens(tokenizer, "The cat's mat (a mat)") == ["The", " cat's", " mat", " (", "a</w>", " mat", ")</w>"]
    assert not any("rare" in token for token in tokenizer.get_vocab())


@pytest.mark.parametrize("saved", [False, True])
def test_nothing_is_lost_but_what_is_unknown(saved, tmp_path):
    tokenizer = build_tokenizer("word", STRANGE.encode(), min_count=1)
    if saved:
        tokenizer.save_pretrained(tmp_path)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.decode(tokenizer(STRANGE)["input_ids"]) == STRANGE and unknown_rate(tokenizer, STRANGE) == 0


def test_an_unknown_word_keeps_its_place_and_spaces():
    tokenizer = build_tokenizer("word", b"I sat, a cat (X) on a mat.\n" * 3, min_count=2)
    text = "I zebra (Xylophone) sat, ,Iam a\tlion\nlion☃ cat.\n☃☃ on mats"
    unknown = "I <unk> (<unk>) sat, <unk><unk> a\t<unk>\n<unk><unk> cat.\n<unk><unk> on <unk>"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == unknown
    assert tokenizer.decode(ids, skip_special_tokens=True) == unknown.replace("<unk>", "")
    assert unknown_rate(tokenizer, text) == unknown.count("<unk>") / len(ids)


def test_what_is_decoded_in_parts_is_what_is_decoded_at_once():
    """As pipelines do with a prompt and its continuation."""
    tokenizer = build_tokenizer("word", DOCS.train, vocab_size=500, min_count=3)
    ids = tokenizer(DOCS.validation.decode()[:3000])["input_ids"]
    assert "".join(tokenizer.decode([i]) for i in ids) == tokenizer.decode(ids)


def test_the_validation_split_of_a_real_text():
    tokenizer = build_tokenizer("word", DOCS.train, vocab_size=2000, min_count=3)
    text = DOCS.validation.decode()
    decoded = tokenizer.decode(tokenizer(text)["input_ids"])
    known = map(re.escape, decoded.split("<unk>"))
    assert re.fullmatch(r"[^\s]+?".join(known), text), "unknown are words and marks alone"
    assert 0 < unknown_rate(tokenizer, text) < 0.2


SENTENCES = [
    "It sat.| Then it slept!| (It did.)| 'Why?'| [[Cats]] do.",
    "Mr. J. R. Smith (b. 1950) e.g. Dr. No.| The end",
    "It cost 3.5 pounds, i.e. 4 dollars vs. Five.| Are 12 of them? no",
    "A line that goes\nover the end.|\nAnother one... goes on.\nand on.|\n",
    "== A heading ==|\n\nA paragraph|\n\n* one.|\n* two\n* three",
    "Two  spaces.|  After a stop.",
    "no end.",
]


@pytest.mark.parametrize("marked", SENTENCES)
def test_sentences_end_where_they_end(marked):
    text = marked.replace("|", "")
    tokenizer = build_tokenizer("word", text.encode(), min_count=1)
    ids = tokenizer(text)["input_ids"]
    end = tokenizer.convert_tokens_to_ids(SENTENCE_END)
    assert "".join("|" if i == end else tokenizer.decode([i]) for i in ids) == marked
    assert tokenizer.decode(ids) == text


def test_what_a_text_says_is_text_though_it_looks_like_a_special_token():
    text = "<unk> is </s> not <pad>.\nThe end"
    tokenizer = build_tokenizer("word", text.encode(), min_count=1, padding=True)
    found = tokens(tokenizer, text)
    assert unknown_rate(tokenizer, text) == 0 and found.count(SENTENCE_END) == 1
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("level", ["bpe", "word"])
def test_a_mask_stands_for_a_word_with_its_space(level):
    tokenizer = build_tokenizer(level, b"The cat sat.\n" * 9, vocab_size=300, min_count=1, mask=True)
    whole, masked = tokens(tokenizer, "The cat sat"), tokens(tokenizer, "The <mask> sat")
    assert len(whole) == 3 and masked == [whole[0], "<mask>", whole[2]]


def test_a_vocabulary_is_no_larger_than_asked_for():
    assert len(build_tokenizer("word", DOCS.train, vocab_size=500, min_count=1)) == 500
    with pytest.raises(ValueError, match="vocab_size=7 must be more than 7: <unk>, </s> and white space"):
        build_tokenizer("word", DOCS.train, vocab_size=7)
