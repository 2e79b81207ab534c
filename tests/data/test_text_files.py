"""Texts for language models: in tables they are texts, in folders and by patterns there are several files."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from hf_efficient.data.text_files import find_texts
from hf_efficient.data.text_streams import TextOptions, load_language_data

TEXTS = ["Der Käse\nist alt.", 'Er sagt: "a, b".', "", "None"]
JOINED = 'Der Käse\nist alt.\n\nEr sagt: "a, b".\n\nNone'.encode()


@pytest.fixture(autouse=True)
def caches(own_caches):
    """Nothing is left behind."""


def write_table(file, texts, **columns):
    rows = {"text": texts, **{name: [value] * len(texts) for name, value in columns.items()}}
    if file.suffix == ".jsonl":
        file.write_text(
            "\n".join(json.dumps(dict(zip(rows, row, strict=True))) for row in zip(*rows.values(), strict=True))
        )
    elif file.suffix == ".csv":
        Dataset.from_dict(rows).to_csv(file)
    else:
        pq.write_table(pa.table(rows), file)
    return file


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_tables_are_read_as_texts(tmp_path, kind):
    file = write_table(tmp_path / f"a.{kind}", TEXTS, number=3, title="x")
    assert find_texts(str(file)) == ({"train": JOINED}, [])
    assert find_texts(str(file), "title").splits["train"] == b"\n\n".join([b"x"] * 4)
    with pytest.raises(ValueError, match=r"text_column='number': .*a.* has the columns of text text, title"):
        find_texts(str(file), "number")


def test_the_names_of_files_say_the_splits(tmp_path):
    for split in ("train", "valid", "test"):
        write_table(tmp_path / f"{split}.jsonl", [split] * 40)
    data = load_language_data(TextOptions(str(tmp_path)))
    read = {name: bytes(getattr(data, name).tokens) for name in ("train", "validation", "test")}
    assert {name: set(text.split()) for name, text in read.items()} == {
        "train": {b"train"},
        "validation": {b"valid"},
        "test": {b"test"},
    }
    (tmp_path / "valid.jsonl").unlink()
    data = load_language_data(TextOptions(str(tmp_path)))
    train, validation = bytes(data.train.tokens), bytes(data.validation.tokens)
    assert b"train" in validation and len(train) + len(validation) == len(read["train"])
    assert bytes(data.test.tokens) == read["test"]


def test_a_folder_or_a_pattern_of_text_files(tmp_path):
    for name, text in (("b.txt", "two\n"), ("a.txt", "one"), ("c.md", "three"), ("deep/d.txt", "four"), (".hid", "x")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert find_texts(str(tmp_path)).splits == {"train": b"one\n\ntwo\n\nthree\n\nfour"}
    assert find_texts(str(tmp_path / "*.txt")).splits == {"train": b"one\n\ntwo"}
    assert find_texts(str(tmp_path / "**" / "*.txt")).splits == {"train": b"one\n\ntwo\n\nfour"}
    (tmp_path / "deep" / "valid.txt").write_text("held out")
    assert find_texts(str(tmp_path)).splits["valid"] == b"held out"
    write_table(tmp_path / "e.jsonl", TEXTS)
    with pytest.raises(ValueError, match=r"holds both a.txt and e.jsonl: give a pattern, as .*/\*.txt"):
        find_texts(str(tmp_path))
    assert find_texts(str(tmp_path / "*.jsonl")).splits == {"train": JOINED}


def test_what_datasets_has_saved(tmp_path):
    rows = Dataset.from_dict({"content": TEXTS})
    DatasetDict({"train": rows, "test": rows.select([3])}).save_to_disk(tmp_path / "saved")
    assert find_texts(str(tmp_path / "saved")).splits == {"train": JOINED, "test": b"None"}


def test_rows_without_a_text_are_named_or_counted(tmp_path):
    file = write_table(tmp_path / "a.jsonl", ["one", None, "two", None])
    with pytest.raises(ValueError, match=r"text_column='text': .* row 1, holds no text, and 1 more are like that"):
        find_texts(str(file))
    texts, skipped = find_texts(str(file), skip_corrupt=True)
    assert texts == {"train": b"one\n\ntwo"} and len(skipped) == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"a": "x", "b": "y"}], "text_column is ambiguous: .* has 'a' and 'b'. Set text_column to one"),
        ([{"text": 1}], "text_column='text': .* has the columns of text none"),
        ([{"a": 1}], "text_column is missing: .* has the columns a, and none is called text, sentence"),
    ],
)
def test_columns_that_are_not_clear(tmp_path, rows, message):
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=message):
        find_texts(str(tmp_path / "a.jsonl"))


def test_what_is_no_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a\xff"}\n')
    with pytest.raises(ValueError, match=r"row 0, holds no UTF-8: .* byte 0xff in position 1"):
        find_texts(str(tmp_path / "a.jsonl"))
    with pytest.raises(ValueError, match=r"unknown texts 'no such file.txt'"):
        find_texts("no such file.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has no files"):
        find_texts(str(tmp_path / "empty"))
