"""Labelled texts by name or path, for classifiers: splits, classes, and what is wrong with a row."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow.compute as pc
import torch
from torch import Tensor

from .label_splits import QUARTER, first_of_classes, part_off, quarter
from .made_texts import MAKERS
from .split_names import EVALUATION_NAMES, TRAINING_NAMES
from .text_sources import Columns, find_tables, pick_columns

LEVELS = ("byte", "bpe", "word", "symbol")
LONG_TEXTS = ("cut", "refuse")
UNLABELLED = -1  # what the Hub writes where a label is kept secret


@dataclass(frozen=True)
class LabelledTextOptions:
    """What is read, and how: the section `dataset` of a run.

    Args:
        name: "sst2", "imdb", "listops", "pathfinder", "retrieval", the path of a file or folder of CSV, JSON lines or
            parquet, or a data set on the Hub
        config: of a data set on the Hub that has several
        text_column, label_column: of tables; usual names are found
        text_pair_column: of the second text, for pairs
        level: of the tokens: "byte", "bpe", "word" or "symbol", which is what stands between spaces; by default what
            the data were made for, else "byte"
        tokenizer: a folder or repository to take it from, instead of fitting one to the training split; by default
            that of model.pretrained
        vocab_size, min_count: see `build_tokenizer`
        max_length: tokens of a text; by default as many as the model reads
        long_texts: "cut" what is longer, which is counted and said, or "refuse" it
        limit: at most so many texts of each split, balanced over the classes
        evaluation_limit: of the splits beside training, if it is to be another
        validation: so many training texts, balanced over the classes, are held out to choose by, and the evaluation
            split is a test that chooses nothing
        skip_corrupt: leave out rows without a text or a label, and say how many, rather than stop
        options: of listops (shortest, longest, depth, most_arguments, seed) and pathfinder (image_size,
            contour_length, distractors, seed), which are made
    """

    name: str
    config: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    text_pair_column: str | None = None
    level: str | None = None
    tokenizer: str | None = None
    vocab_size: int = 8192
    min_count: int = 2
    max_length: int | None = None
    long_texts: str = "cut"
    limit: int | None = None
    evaluation_limit: int | None = None
    validation: int | None = None
    skip_corrupt: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        for name in ("vocab_size", "min_count", "max_length", "limit", "evaluation_limit", "validation"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < 2e9:
                raise ValueError(f"{name}={value} must be at least 1, below 2 billion.")
        for name, choices in (("level", (None, *LEVELS)), ("long_texts", LONG_TEXTS)):
            if getattr(self, name) not in choices:
                shown = ", ".join(filter(None, choices))
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {shown}.")


@dataclass(frozen=True)
class LabelledTexts:
    """
    Args:
        rows: a `datasets.Dataset` with "text", and "pair" if texts come in pairs.
        labels: int64 (N,)
        skipped: rows that were left out, and why.
    """

    rows: Any
    labels: Tensor
    class_names: list[str]
    skipped: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def has_pairs(self) -> bool:
        return "pair" in self.rows.column_names

    def subset(self, indices: Tensor) -> "LabelledTexts":
        return LabelledTexts(self.rows.select(indices.tolist()), self.labels[indices], self.class_names, self.skipped)

    def limited(self, limit: int | None) -> "LabelledTexts":
        """At most so many texts, as many of each class as can be, in their order."""
        if limit is None or limit >= len(self):
            return self
        return self.subset(first_of_classes(self.labels, limit))


class TextSplits(NamedTuple):
    """What is trained on, what chooses, and what is looked at once if something else has chosen."""

    train: LabelledTexts
    evaluation: LabelledTexts
    test: LabelledTexts | None


def load_labelled_texts(options: LabelledTextOptions) -> TextSplits:
    """Texts for training, for choosing and for a test.

    What chooses is `validation` training texts; else the split of that name, or one like it; else the split "test",
    and there is no other test; where there is none of them, a quarter of the training texts. A split whose labels are
    all missing, as those of GLUE's tests are, is left aside.
    """
    other = options.limit if options.evaluation_limit is None else options.evaluation_limit
    limits = {"train": options.limit, "validation": other, "test": other}
    tables = find_tables(options.name, options.config, options.options, limits)
    train_name = next((name for name in TRAINING_NAMES if name in tables), None)
    if train_name is None:
        raise ValueError(f"{options.name} has no split 'train', only {', '.join(tables)}.")
    train = read_texts(tables[train_name], train_name, options).limited(options.limit)
    found = {}
    for name in EVALUATION_NAMES:
        if name in tables and (part := read_texts(tables[name], name, options, train.class_names)) is not None:
            found[name] = part.limited(other)
    test = found.pop("test", None)
    evaluation = next(iter(found.values()), None)
    if options.validation is not None:
        if options.validation >= len(train):
            raise ValueError(f"validation={options.validation} would leave nothing of {len(train)} training texts.")
        test = evaluation if test is None else test
        train, evaluation = map(train.subset, part_off(train.labels, options.validation))
    elif evaluation is None and test is None:
        rest, held_out = quarter(train.labels)
        if not len(held_out):
            raise ValueError(f"{len(train)} texts are too few for an evaluation split: each class needs {QUARTER}.")
        train, evaluation = train.subset(rest), train.subset(held_out).limited(other)
    elif evaluation is None:
        evaluation, test = test, None
    return TextSplits(train, evaluation, test)


def load_evaluation_texts(options: LabelledTextOptions, class_names: list[str], split: str) -> LabelledTexts:
    """Other data than a model was trained on: the split of that name, another for evaluation, or all there is.

    Args:
        class_names: those that the model knows.
    """
    other = options.limit if options.evaluation_limit is None else options.evaluation_limit
    limits = dict.fromkeys(("train", "validation", "test"), other)
    tables = find_tables(options.name, options.config, options.options, limits)
    name = next((name for name in (split, *EVALUATION_NAMES, *TRAINING_NAMES) if name in tables), None)
    found = None if name is None else read_texts(tables[name], name, options, class_names, "model knows")
    if found is None:
        raise ValueError(f"{options.name} has no split with labels, only {', '.join(tables)}.")
    return found.limited(other)


def read_texts(
    table,
    split: str,
    options: LabelledTextOptions,
    class_names: list[str] | None = None,
    known_by: str = "training split has",
) -> LabelledTexts | None:
    """A split, its labels numbered; None if it has none.

    Args:
        class_names: those of the training split, which may know more than this one has.
        known_by: who knows them, in words.
    """
    where = f"{options.name}, split {split!r},"
    named = options.text_column, options.label_column, options.text_pair_column
    columns = pick_columns(table.features, where, *named)
    values, names = read_labels(table, columns.label, where)
    if class_names is not None and not any(value is not None for value in values):
        return None
    known = class_names or names
    numbers = {name: number for number, name in enumerate(known)}
    unknown = next((value for value in values if value is not None and value not in numbers), None)
    if unknown is not None:
        raise ValueError(
            f"label_column={columns.label!r}: {where} has the label {unknown!r}, and the {known_by} only "
            f"{', '.join(map(repr, known[:10]))}{', ...' if len(known) > 10 else ''}."
        )
    if len(known) < 2:
        raise ValueError(f"label_column={columns.label!r}: {where} has one class only, {known[0]!r}.")
    empty = {column: empty_texts(table, column) for column in (columns.text, columns.pair) if column}
    faults = {i: (columns.label, "no label") for i, value in enumerate(values) if value is None}
    faults |= {i: (column, "an empty text") for column, rows in empty.items() for i in rows}
    if faults and not options.skip_corrupt:
        first = min(faults)
        column, fault = faults[first]
        option = next(f"{key}_column" for key, name in columns._asdict().items() if name == column)
        option = option.replace("pair", "text_pair")
        more = f", and so do {len(faults) - 1:,} more: mend them, or" if len(faults) > 1 else ": mend it, or"
        raise ValueError(
            f"{option}={column!r}: {where} row {first}, holds {fault}{more} set skip_corrupt to leave out."
        )
    kept = [i for i in range(len(values)) if i not in faults]
    if not kept:
        raise ValueError(f"{where} has no texts.")
    labels = torch.tensor([numbers[values[i]] for i in kept])
    skipped = [f"{where} row {i}, holds {fault} in column {column!r}" for i, (column, fault) in sorted(faults.items())]
    return LabelledTexts(plain_rows(table, columns, kept), labels, known, skipped)


def plain_rows(table, columns: Columns, kept: list[int]):
    """The rows that are kept, under our own names of columns."""
    names = {columns.text: "text"} | ({columns.pair: "pair"} if columns.pair else {})
    rows = table.select_columns(list(names)).rename_columns(names)
    return rows if len(kept) == len(rows) else rows.select(kept)


def empty_texts(table, column: str) -> list[int]:
    """The rows without a text, or with nothing but space."""
    texts = table.select_columns([column]).with_format("arrow")[:][column]
    missing = pc.fill_null(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0), True)
    return pc.indices_nonzero(missing).to_pylist()


def read_labels(table, column: str, where: str) -> tuple[list[str | None], list[str]]:
    """The labels as names of classes, None where there is none, and all classes in order."""
    from datasets import ClassLabel

    feature, values = table.features[column], table[column][:]
    if isinstance(feature, ClassLabel):
        words = [None if value is None or value == UNLABELLED else feature.names[value] for value in values]
        return words, feature.names
    words = [as_word(value, f"label_column={column!r}: {where} row {i},") for i, value in enumerate(values)]
    names = {word for word in words if word is not None}
    are_numbers = all(name.lstrip("-").isdecimal() for name in names)
    return words, sorted(names, key=int) if are_numbers else sorted(names)


def as_word(value, where: str) -> str | None:
    if value is None or value == UNLABELLED or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int):
        raise ValueError(f"{where} holds {value!r}: labels must be words or whole numbers, one for each text.")
    return str(value).strip()


def default_level(name: str) -> str:
    """Of the tokens that a data set was made for."""
    return MAKERS[name].level if name in MAKERS else "byte"
