"""Labelled texts from files and the Hub: columns, classes, splits, and what is said of rows and names that are bad."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Features, Value

from hf_efficient.data.folders import DATA_FOLDER
from hf_efficient.data.labelled_texts import LabelledTextOptions, load_labelled_texts

SHARED = Path(os.environ.get(DATA_FOLDER, Path(__file__).parents[3] / "shared" / "data"))
ROWS = [("a film to see", "good"), ("a film to miss", "bad"), ('said, "no"', "bad"), ("None", "good")] * 4

pytestmark = pytest.mark.usefixtures("own_caches")


def load(name, **options):
    return load_labelled_texts(LabelledTextOptions(str(name), **options))


def write_csv(file, rows=ROWS, header=("text", "label"), sep=","):
    lines = [header, *rows]
    quoted = (sep.join('"' + str(cell).replace('"', '""') + '"' for cell in row) for row in lines)
    file.write_text("\n".join(quoted) + "\n", encoding="utf-8")
    return file


def write_json(file, rows=ROWS, header=("text", "label")):
    file.write_text("\n".join(json.dumps(dict(zip(header, row, strict=True))) for row in rows) + "\n")
    return file


def write_parquet(file, rows=ROWS, header=("text", "label"), features=None):
    columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns, schema=features and features.arrow_schema), file)
    return file


@pytest.mark.parametrize(
    ("write", "name"),
    [(write_csv, "a.csv"), (write_json, "a.jsonl"), (write_json, "a.json"), (write_parquet, "a.parquet")],
)
def test_a_file_of_each_kind(tmp_path, write, name):
    train, evaluation, test = load(write(tmp_path / name))
    assert train.class_names == ["bad", "good"] and len(train) == 12 and len(evaluation) == 4 and test is None
    found = [
        (text, train.class_names[i])
        for part in (train, evaluation)
        for text, i in zip(part.rows["text"][:], part.labels, strict=True)
    ]
    assert sorted(found) == sorted(ROWS), "also the text None, which pandas would take for missing"


def test_tabs(tmp_path):
    train, *_ = load(write_csv(tmp_path / "a.tsv", sep="\t"))
    assert len(train) == 12


def test_a_folder_says_its_splits(tmp_path):
    for name, count in (("train", 8), ("dev", 4), ("test", 2)):
        write_csv(tmp_path / f"{name}.csv", ROWS[:count])
    assert [len(part) for part in load(tmp_path)] == [8, 4, 2]
    train, held_out, test = load(tmp_path, validation=2)
    assert [len(train), len(held_out), len(test)] == [6, 2, 2] and held_out.labels.sort().values.tolist() == [0, 1]
    assert [len(part) for part in load(tmp_path, limit=4, evaluation_limit=2)] == [4, 2, 2]
    (tmp_path / "dev.csv").unlink()
    train, evaluation, test = load(tmp_path)
    assert len(evaluation) == 2 and test is None
    train, held_out, test = load(tmp_path, validation=2)
    assert len(held_out) == len(test) == 2, "what is held out chooses, and the only other split is looked at once"


def test_numbers_and_names_of_classes(tmp_path):
    assert load(write_json(tmp_path / "a.jsonl", [("x", 10), ("y", 2), ("z", 1)] * 4)).train.class_names == [
        "1",
        "2",
        "10",
    ]
    assert load(write_json(tmp_path / "b.jsonl", [("x", True), ("y", False)] * 4)).train.class_names == [
        "False",
        "True",
    ]
    assert load(write_json(tmp_path / "c.jsonl", [("x", 1.0), ("y", 0.0)] * 4)).train.class_names == ["0", "1"]
    features = Features({"text": Value("string"), "label": ClassLabel(names=["pos", "neg"])})
    train = load(write_parquet(tmp_path / "d.parquet", [("x", 1), ("y", 0)] * 4, features=features)).train
    assert train.class_names == ["pos", "neg"], "in the order that the data give them"


def test_a_test_without_labels_is_left_aside(tmp_path):
    features = Features({"sentence": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    for name, labels in (("train", [0, 1]), ("validation", [1, 0]), ("test", [-1, -1])):
        rows = [(f"{name} {i}", label) for i, label in enumerate(labels * 3)]
        write_parquet(tmp_path / f"{name}-0.parquet", rows, ("sentence", "label"), features)
    train, evaluation, test = load(tmp_path)
    assert len(evaluation) == 6 and test is None and "sentence" not in train.rows.column_names


def test_columns_are_found_or_named(tmp_path):
    rows = [("1", "x", "bad"), ("2", "y", "good")] * 4
    found = load(write_json(tmp_path / "a.jsonl", rows, ("id", "Review", "sentiment"))).train
    assert set(found.rows["text"]) == {"x", "y"}
    odd = write_json(tmp_path / "b.jsonl", rows, ("id", "said", "mood"))
    assert load(odd, text_column="said", label_column="mood").train.class_names == ["bad", "good"]
    pairs = load(odd, text_column="id", text_pair_column="said", label_column="mood").train
    assert pairs.has_pairs and {"text": "1", "pair": "x"} in list(pairs.rows)


def test_retrieval_reads_the_files_of_the_arena(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "retrieval"
    folder.mkdir(parents=True)
    line = '{}\tP1\tP2\ta "quoted\ttext of {}\n'
    for name, count in (("train", 6), ("eval", 4), ("test", 2)):
        lines = (line.format(f"{i % 2}.0", name) for i in range(count))
        (folder / f"new_aan_pairs.{name}.tsv").write_text("".join(lines))
    monkeypatch.setenv("HF_EFFICIENT_DATA", str(tmp_path / "data"))
    train, evaluation, test = load("retrieval")
    assert [len(train), len(evaluation), len(test)] == [6, 4, 2] and train.class_names == ["0", "1"]
    assert train.rows[0] == {"text": 'a "quoted', "pair": "text of train"}
    assert len(load(folder).train) == 6


@pytest.mark.parametrize(
    ("rows", "header", "options", "message"),
    [
        (
            ROWS,
            ("said", "mood"),
            {},
            "label_column is missing: .* has the columns said, mood, and none is called label",
        ),
        ([(1, "a"), (2, "b")] * 4, ("said", "label"), {}, "text_column is missing"),
        (ROWS, ("text", "label"), {"text_column": "txt"}, "text_column='txt': .* has the columns text, label"),
        (ROWS, ("text", "label"), {"text_column": "text", "label_column": "text"}, "must differ"),
        (
            [("a", "b", "c")] * 4,
            ("text", "review", "label"),
            {},
            "text_column is ambiguous: .* has 'text' and 'review'",
        ),
        ([("a", "b", "c")] * 4, ("text", "label", "class"), {}, "label_column is ambiguous: .* 'label' and 'class'"),
        ([("a", 0.37), ("b", 0.5)] * 4, ("text", "label"), {}, "row 0, holds 0.37: labels must be words or whole"),
        ([("a", "x")] * 8, ("text", "label"), {}, "has one class only, 'x'"),
        ([(3, "x"), (4, "y")] * 4, ("text", "label"), {"text_column": "text"}, "holds int64 there, not texts"),
        (ROWS, ("text", "label"), {"validation": 16}, "validation=16 would leave nothing of 16 training texts"),
        (ROWS[:2], ("text", "label"), {}, "2 texts are too few for an evaluation split: each class needs 4"),
        (ROWS, ("text", "label"), {"options": {"seed": 1}}, "options are for listops and pathfinder, which are made"),
    ],
)
def test_bad_columns_and_labels_are_named(tmp_path, rows, header, options, message):
    with pytest.raises(ValueError, match=message):
        load(write_json(tmp_path / "a.jsonl", rows, header), **options)


def test_empty_texts_and_missing_labels(tmp_path):
    rows = [*ROWS, ("  \n", "good"), ("x", None), ("", "bad")]
    file = write_json(tmp_path / "a.jsonl", rows)
    with pytest.raises(ValueError, match=r"text_column='text': .* row 16, holds an empty text, and so do 2 more"):
        load(file)
    train, evaluation, _ = load(file, skip_corrupt=True)
    assert len(train) + len(evaluation) == 16 and len(train.skipped) == 3 and "row " in train.skipped[0]
    with pytest.raises(ValueError, match=r"label_column='label': .* row 16, holds no label: mend it, or set skip"):
        load(write_json(tmp_path / "b.jsonl", [*ROWS, ("x", None)]))
    with pytest.raises(ValueError, match=r"text_pair_column='pair': .* row 1, holds an empty text"):
        pairs = [("a", "b", "x"), ("c", "", "y")]
        load(write_json(tmp_path / "c.jsonl", pairs, ("text", "pair", "label")), text_pair_column="pair")


def test_labels_that_training_does_not_know(tmp_path):
    write_csv(tmp_path / "train.csv")
    write_csv(tmp_path / "test.csv", [("x", "ugly")])
    with pytest.raises(
        ValueError, match=r"split 'test', has the label 'ugly', and the training split has only 'bad', 'good'"
    ):
        load(tmp_path)


def test_names_that_are_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EFFICIENT_DATA", str(tmp_path))
    with pytest.raises(
        ValueError, match=r"unknown texts 'no/such': there are sst2, imdb, listops, pathfinder, retriev"
    ):
        load("no/such")
    with pytest.raises(ValueError, match=r"imdb is not in the folder that the variable HF_EFFICIENT_DATA names"):
        load("imdb")
    with pytest.raises(ValueError, match="must hold Long Range Arena's files as retrieval/new_aan_pairs"):
        load("retrieval")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match=r"a.txt must be a file of .csv, .tsv, .json"):
        load(tmp_path / "a.txt")
    write_csv(tmp_path / "b.csv")
    write_json(tmp_path / "c.jsonl")
    with pytest.raises(ValueError, match=r"holds files of several kinds \(.csv, .jsonl\)"):
        load(tmp_path)
    (tmp_path / "d.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"d.parquet can't be read as parquet"):
        load(tmp_path / "d.parquet")
    with pytest.raises(ValueError, match="level='char' must be one of byte, bpe, word, symbol"):
        load("sst2", level="char")


@pytest.mark.skipif(not (SHARED / "sst2").is_dir(), reason="../shared/data/sst2 is not here")
def test_real_data(monkeypatch):
    monkeypatch.setenv(DATA_FOLDER, str(SHARED))
    train, evaluation, test = load("sst2", validation=1000, limit=4000)
    assert train.class_names == ["negative", "positive"] and len(evaluation) == 1000 and len(train) == 3000
    assert train.labels.bincount().tolist() == [1500, 1500] and len(test) == 872
