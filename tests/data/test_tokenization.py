"""Tokenizers: nothing is lost at the levels of bytes and BPE, what words lose is counted, AutoTokenizer loads all."""

import pytest
from transformers import AutoTokenizer

from hf_efficient.data.text import load_text, split_text
from hf_efficient.data.text_streams import TextOptions, load_language_data
from hf_efficient.data.tokenization import build_tokenizer, byte_alphabet, pieces, unknown_rate

DOCS = split_text(load_text("pydocs")[:200_000], "word")
STRANGE = "Käse čaj — 日本語 \x00\t 🐎\n\n  two  spaces </s> <pad> Ā"


@pytest.fixture(scope="module", params=["byte", "bpe", "word"])
def tokenizer(request):
    return build_tokenizer(request.param, DOCS.train, vocab_size=1000, min_count=3)


def test_a_byte_is_its_own_id():
    tokenizer = build_tokenizer("byte")
    assert len(tokenizer) == 256
    assert tokenizer(STRANGE)["input_ids"] == list(STRANGE.encode())
    assert len(set(byte_alphabet())) == 256


@pytest.mark.parametrize("level", ["byte", "bpe"])
def test_nothing_is_lost(level):
    tokenizer = build_tokenizer(level, DOCS.train, vocab_size=600)
    assert tokenizer.decode(tokenizer(STRANGE)["input_ids"]) == STRANGE
    assert unknown_rate(tokenizer, STRANGE) == 0


def test_bpe_has_the_size_asked_for_and_shortens_text():
    tokenizer = build_tokenizer("bpe", DOCS.train, vocab_size=1000)
    assert len(tokenizer) == 1000
    assert len(tokenizer(DOCS.test.decode())["input_ids"]) < len(DOCS.test) / 2


@pytest.mark.parametrize("character", ["a", " ", "é", "."])
def test_a_line_may_be_of_any_length(character):
    """Cut wherever need be: words of any length took the square of it."""
    line = (character * 1000 + "x") * 200
    assert max(map(len, pieces(line))) == 2**16 and "".join(pieces(line)) == line
    tokenizer = build_tokenizer("bpe", line.encode(), vocab_size=300)
    assert max(map(len, tokenizer.get_vocab())) <= 2 * 128, "no token is longer than a word may be"
    assert tokenizer.decode([i for piece in pieces(line) for i in tokenizer(piece)["input_ids"]]) == line


@pytest.mark.parametrize("level", ["bpe", "word"])
def test_tokenizers_are_fitted_on_the_training_split_only(level, tmp_path):
    file, vocabularies = tmp_path / "text.txt", []
    for other in (b"gamma ", b"delta "):
        file.write_bytes(b"alpha beta\n" * 800 + other * 183)  # 80 or 90 % are the training split
        options = TextOptions(str(file), level=level, vocab_size=300, min_count=1, limit=9600)
        tokenizer = load_language_data(options, tmp_path).tokenizer
        vocabularies.append(tokenizer.get_vocab())
    assert vocabularies[0] == vocabularies[1]
    assert not any("gam" in token or "del" in token for token in vocabularies[0])


def test_saved_and_loaded(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = DOCS.validation.decode()
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert again.get_vocab() == tokenizer.get_vocab()
    assert set(again(text)) == {"input_ids", "attention_mask"}  # what `generate` takes


@pytest.mark.parametrize("level", ["byte", "bpe", "word"])
def test_padding_is_a_token_of_its_own(level):
    tokenizer = build_tokenizer(level, DOCS.train, vocab_size=600, padding=True)
    batch = tokenizer(["short", "a longer text"], padding=True, padding_side="left")
    assert tokenizer.pad_token_id not in build_tokenizer(level, DOCS.train, vocab_size=600).get_vocab().values()
    assert batch["attention_mask"][0][0] == 0 and batch["input_ids"][0][0] == tokenizer.pad_token_id


def test_pieces_are_the_text():
    text = "line\n" * 50_000
    assert "".join(pieces(text)) == text and len(list(pieces(text))) > 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"level": "letter"}, "level='letter'"),
        ({"level": "word"}, "train is empty"),
        ({"level": "word", "train": b"abc\xff"}, "train is not UTF-8: byte 0xff at position 3"),
        ({"level": "bpe", "train": b"abc", "vocab_size": 10}, "vocab_size=10 must be at least 256"),
        ({"level": "word", "train": b"abc", "min_count": 0}, "min_count=0"),
    ],
)
def test_bad_input(fields, message):
    with pytest.raises(ValueError, match=message):
        build_tokenizer(**fields)
