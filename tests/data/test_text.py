"""Corpora, cleaning and splits."""

import os
from pathlib import Path

import pytest

from hf_efficient.data.folders import DATA_FOLDER
from hf_efficient.data.text import decode, load_text, split_text, strip_tags

TEXT = "\n".join(f"Line {i}: ein Käse, čtyři <b>koně</b>." for i in range(200)).encode()
SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.parametrize("level", ["byte", "bpe", "word"])
@pytest.mark.parametrize("preset", ["paper", "standard"])
def test_splits_are_the_text_in_order_and_whole_characters(level, preset):
    splits = split_text(TEXT, level, preset)
    assert b"".join(splits) == (strip_tags(TEXT) if preset == "paper" else TEXT)
    for part in splits:
        part.decode("utf-8")
    share = 0.8 if (level, preset) == ("word", "paper") else 0.9
    assert len(splits.train) / sum(map(len, splits)) == pytest.approx(share, abs=0.01)
    assert len(splits.validation) == pytest.approx(len(splits.test), abs=4)


def test_the_paper_reads_less_for_words():
    text = b"a" * 30_000_000
    assert sum(map(len, split_text(text, "word"))) == 25_000_000
    assert sum(map(len, split_text(text, "byte"))) == 30_000_000


def test_tags_go_and_other_brackets_stay():
    assert strip_tags(b"<page><title a='1'>x</title> 1 < 2 &lt;ref&gt;y&lt;/ref&gt; &amp; z") == b"x 1 < 2 y & z"
    assert strip_tags(b"\xff<b>\xfe</b>") == b"\xff\xfe"  # bytes that are no UTF-8 survive


def test_text_above_bytes_must_be_utf8():
    with pytest.raises(ValueError, match="train is not UTF-8: byte 0xff at position 3"):
        decode(b"abc\xffdef", "train")


def test_pydocs_come_with_python():
    text = load_text("pydocs")
    assert len(text) > 100_000 and b"assert" in text


def test_a_path_is_read(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"hello")
    assert load_text(tmp_path / "a.txt") == b"hello"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_text("no such thing"), "unknown text 'no such thing'"),
        (lambda: split_text(TEXT, "letter"), "level='letter' must be one of byte, bpe, word"),
        (lambda: split_text(TEXT, "byte", "mine"), "preset='mine' must be one of paper, standard"),
        (lambda: split_text(b"abc", "byte"), "a text of 3 bytes is too short: nothing is left for"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_enwik8_needs_its_folder_or_the_hub(monkeypatch, tmp_path):
    monkeypatch.delenv(DATA_FOLDER, raising=False)
    with pytest.raises(ValueError, match=f"can't be loaded from the Hub .*set {DATA_FOLDER}=<folder>"):
        load_text("enwik8")
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    with pytest.raises(ValueError, match="has no file enwik8 or enwik8_head"):
        load_text("enwik8")


@pytest.mark.skipif(not (SHARED / "enwik8").is_dir(), reason="../shared/data/enwik8 is not here")
def test_enwik8(monkeypatch):
    monkeypatch.setitem(os.environ, DATA_FOLDER, str(SHARED))
    text = load_text("enwik8")
    assert text.startswith(b"<mediawiki")
    assert split_text(text, "byte", "standard").train == text[: len(text) * 9 // 10]
    assert b"<page>" not in split_text(text[:200_000], "byte", "paper").train
