"""Texts as tokens in streams: every token once, in order, and counted in bytes."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_efficient.data.text_streams import (
    EncodedText,
    RandomCrops,
    TextOptions,
    TextStreams,
    encode_text,
    is_byte_tokenizer,
    load_language_data,
)
from hf_efficient.data.tokenization import build_tokenizer

TEXT = "\n".join(f"Zeile {i}: der Käse, the čtyři koně 😀." for i in range(120))


def numbers(count, documents=(0,)):
    """A text whose tokens are 0, 1, 2, ..."""
    return EncodedText(np.arange(count, dtype=np.int32), np.array(documents), count - 1, count - 1, 0.0)


def without_spaces():
    """A tokenizer of other people's, whose tokens leave spaces out."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def rounds_of(dataset):
    """One batch of all streams after the other."""
    for t in range(dataset.rounds):
        yield dataset.__getitems__(list(range(t * dataset.streams, (t + 1) * dataset.streams)))


def test_streams_go_on_from_batch_to_batch():
    batches = list(rounds_of(TextStreams(numbers(64), segment_length=5, streams=3)))
    assert [batch["reset"].tolist() for batch in batches] == [[True] * 3] + [[False] * 3] * 3
    inputs = torch.cat([batch["input_ids"] for batch in batches], 1)
    labels = torch.cat([batch["shift_labels"] for batch in batches], 1)
    assert inputs.tolist() == [list(range(s * 20, s * 20 + 20)) for s in range(3)]
    assert torch.equal(labels, inputs + 1)  # borders of segments and of streams included
    assert all(batch["labels"] is batch["shift_labels"] for batch in batches)


@pytest.mark.parametrize("count", [2, 7, 16, 61, 64])
@pytest.mark.parametrize("streams", [1, 3, 8])
@pytest.mark.parametrize("documents", [(0,), (0, 1, 6)])
def test_evaluation_predicts_every_token_but_the_first_once(count, streams, documents):
    documents = [start for start in documents if start < count]
    dataset = TextStreams(numbers(count, documents), segment_length=5, streams=streams, whole=True)
    found = []
    for batch in rounds_of(dataset):
        assert "attention_mask" not in batch
        real = batch["labels"] != -100
        assert torch.equal(batch["labels"][real], batch["input_ids"][real] + 1)
        found += batch["labels"][real].tolist()
    assert sorted(found) == list(range(1, count))


def test_documents_begin_segments_with_an_empty_memory():
    dataset = TextStreams(numbers(30, [0, 7, 20]), segment_length=4, streams=1)
    batches = list(rounds_of(dataset))
    assert [batch["input_ids"][0, 0].item() for batch in batches] == [0, 4, 7, 11, 15, 19, 20, 24]
    assert [batch["reset"].item() for batch in batches] == [1, 0, 1, 0, 0, 0, 1, 0]
    padded = batches[1]  # 4, 5, 6, and then the next document
    assert padded["labels"].tolist() == [[5, 6, 7, -100]] and padded["attention_mask"].tolist() == [[1, 1, 1, 0]]


def test_a_step_reads_the_same_however_it_is_divided():
    """One batch of 4; two of 2, accumulated or on two processes."""
    dataset = TextStreams(numbers(100), segment_length=3, streams=4)
    whole = dataset.__getitems__([4, 5, 6, 7])
    halves = [dataset.__getitems__(part) for part in ([4, 5], [6, 7])]
    assert torch.equal(torch.cat([half["input_ids"] for half in halves]), whole["input_ids"])
    assert [half["stream"] for half in halves] == [0, 2]
    assert [dataset[i]["input_ids"].tolist() for i in (4, 5)] == halves[0]["input_ids"].tolist()


def test_random_crops_are_reset_and_follow_seed_and_epoch():
    make = lambda streams=3, seed=0: RandomCrops(numbers(200), 4, streams, segments_per_crop=3, seed=seed)  # noqa: E731
    dataset = make()
    batches = list(rounds_of(dataset))
    assert [batch["reset"].all().item() for batch in batches] == [True, False, False] * dataset.crops
    assert [batch["reset"].any().item() for batch in batches] == [True, False, False] * dataset.crops
    for first in range(0, len(batches), 3):
        rows = torch.cat([batch["input_ids"] for batch in batches[first : first + 3]], 1)
        assert torch.equal(rows, rows[:, :1] + torch.arange(12))
        assert torch.equal(batches[first + 2]["labels"][:, -1], rows[:, -1] + 1)
    starts = dataset.starts
    assert np.array_equal(make().starts, starts) and not np.array_equal(make(seed=1).starts, starts)
    dataset.set_epoch(1)
    assert not np.array_equal(dataset.starts, starts)
    dataset.set_epoch(0)
    assert np.array_equal(dataset.starts, starts) and np.array_equal(make(streams=6).starts[:6], starts[:6])


def test_bytes_are_their_own_tokens():
    tokenizer = build_tokenizer("byte")
    text = "Käse".encode() + b"\xff"
    encoded = encode_text(text, tokenizer)
    assert encoded.tokens.dtype == np.uint8 and bytes(encoded.tokens) == text
    assert (encoded.bytes, encoded.characters) == (5, 4)  # of "äse" and a byte that is no UTF-8
    assert is_byte_tokenizer(build_tokenizer("byte", padding=True))


@pytest.mark.parametrize("level", ["bpe", "word"])
def test_tokens_stand_for_all_bytes_of_the_text(tmp_path, level):
    tokenizer = build_tokenizer(level, TEXT.encode(), vocab_size=300, min_count=2)
    assert not is_byte_tokenizer(tokenizer)
    encoded = encode_text(TEXT.encode(), tokenizer, cache=tmp_path)
    first, decoded = (tokenizer.decode(part.tolist()) for part in (encoded.tokens[:1], encoded.tokens))
    assert decoded == TEXT if level == "bpe" else decoded.count("<unk>") == 120  # the numbers
    assert encoded.bytes == len(TEXT.encode()) - len(first.encode())
    assert encoded.characters == len(TEXT) - len(first)
    assert (encoded.unknown_rate > 0) == (level == "word")
    assert encoded.unknown_rate == np.mean(encoded.tokens == (tokenizer.unk_token_id if level == "word" else -1))
    lost = len(TEXT.encode()) - len(decoded.replace("<unk>", "").encode())
    assert encoded.spelled == lost + decoded.count("<unk>")


def test_spaces_that_no_token_holds_are_counted(tmp_path):
    encoded = encode_text("\n the Käse".encode(), without_spaces(), cache=tmp_path)
    assert (encoded.tokens.tolist(), encoded.bytes, encoded.characters, encoded.spelled) == ([1, 0], 6, 5, 6)


def test_an_unknown_word_that_is_not_predicted_is_not_charged(tmp_path):
    tokenizer = build_tokenizer("word", b"a cat\n" * 3, min_count=2)
    assert encode_text("Käse cat Käse".encode(), tokenizer, cache=tmp_path).spelled == 5 + 1


def test_a_first_token_may_be_part_of_a_character(tmp_path):
    tokenizer = build_tokenizer("bpe", b"abc", vocab_size=256)  # nothing merged, but <pad> makes it no byte tokenizer
    tokenizer.add_tokens(["never"])
    encoded = encode_text("😀a".encode(), tokenizer, cache=tmp_path)
    assert len(encoded.tokens) == 5 and encoded.tokens.dtype == np.uint16
    assert (encoded.bytes, encoded.characters) == (4, 1)


def test_tokens_are_kept_and_mapped(tmp_path, monkeypatch):
    tokenizer = build_tokenizer("bpe", TEXT.encode(), vocab_size=300)
    first = encode_text(TEXT.encode(), tokenizer, cache=tmp_path)
    (folder,) = tmp_path.iterdir()  # and no draft beside it
    monkeypatch.setattr("hf_efficient.data.text_streams._tokenize", None)
    again = encode_text(TEXT.encode(), tokenizer, cache=tmp_path)
    assert isinstance(again.tokens, np.memmap) and again.tokens.dtype == np.uint16
    assert np.array_equal(first.tokens, again.tokens) and first[2:] == again[2:]
    with pytest.raises(TypeError):  # another text is another file
        encode_text(TEXT[1:].encode(), tokenizer, cache=tmp_path)


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    tokenizer = build_tokenizer("bpe", TEXT.encode(), vocab_size=300)

    def full(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr("hf_efficient.data.text_streams.np.save", full)
    with pytest.raises(OSError, match="no space"):
        encode_text(TEXT.encode(), tokenizer, cache=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("level", ["byte", "bpe"])
def test_documents_are_found(tmp_path, level):
    text = b"intro" + b"".join(b"<page>one" + b" more" * i for i in range(4))
    tokenizer = build_tokenizer(level, text, vocab_size=300)
    encoded = encode_text(text, tokenizer, document_start="<page>", cache=tmp_path)
    ends = [*encoded.documents[1:], len(encoded.tokens)]
    parts = [encoded.tokens[a:b].tolist() for a, b in zip(encoded.documents, ends, strict=True)]
    assert [tokenizer.decode(part) for part in parts] == ["intro", *("<page>one" + " more" * i for i in range(4))]
    assert encoded.bytes == len(text) - len(tokenizer.decode(parts[0][:1]))


def test_data_by_options(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    data = load_language_data(TextOptions(str(tmp_path / "a.txt"), "bpe", vocab_size=280), tmp_path / "cache")
    assert len(data.tokenizer) == 280 and len(data.train.tokens) > 10 * len(data.test.tokens)
    kept = data.tokenizer.save_pretrained(tmp_path / "kept")
    assert kept
    options = TextOptions(str(tmp_path / "a.txt"), "bpe", limit=2000, tokenizer=str(tmp_path / "kept"))
    again = load_language_data(options, tmp_path / "cache")
    assert again.tokenizer.get_vocab() == data.tokenizer.get_vocab()
    assert np.array_equal(again.train.tokens[:100], data.train.tokens[:100])
    assert len(again.train.tokens) < len(data.train.tokens)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TextStreams(numbers(30), 8, 4), "30 tokens is too short for 4 streams of segments of 8"),
        (lambda: TextStreams(numbers(1), 8, 4, whole=True), "a text of 1 tokens"),
        (lambda: TextStreams(numbers(30), 0, 4), "segment_length=0 must be at least 1"),
        (lambda: TextStreams(numbers(30), 4, 0), "streams=0 must be at least 1"),
        (lambda: RandomCrops(numbers(30), 8, 4), "too short for crops of 4 segments of 8 tokens"),
        (lambda: TextOptions("pydocs", order="shuffled"), "order='shuffled' must be one of contiguous, random"),
        (lambda: TextOptions("pydocs", limit=0), "limit=0 must be at least 1"),
        (lambda: TextOptions("pydocs", vocab_size=0), "vocab_size=0 must be at least 1"),
        (lambda: encode_text(b"abc", build_tokenizer("byte"), ""), "document_start='' is everywhere"),
        (lambda: encode_text(b"  ", without_spaces()), "has no tokens: it is all space"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
