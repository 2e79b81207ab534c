"""Where labelled texts come from: files of CSV, JSON lines or parquet, the Hub, or makers. All become `datasets`.

sst2, imdb           from the folder in HF_EFFICIENT_DATA if it has them, else from the Hub
retrieval            Long Range Arena's files new_aan_pairs.*.tsv, in <HF_EFFICIENT_DATA>/retrieval: pairs of papers
listops, pathfinder  made here
a path               a file, or a folder of files of one kind, whose names say the splits; what `save_to_disk` wrote
any other name       a data set on the Hub
"""

import csv
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .folders import DATA_FOLDER
from .made_texts import MAKERS, make_splits
from .saved_data import saved_splits
from .split_names import split_of
from .terminal_bars import bars_on_terminals

REPOSITORIES = {"sst2": "stanfordnlp/sst2", "imdb": "stanfordnlp/imdb"}
RETRIEVAL = "retrieval"
NAMES = (*REPOSITORIES, *MAKERS, RETRIEVAL)
KINDS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
ARENA = re.compile(r"new_aan_pairs\.(train|eval|test)\.tsv")  # no header, no quotes
ARENA_COLUMNS = ["label", "id1", "id2", "text1", "text2"]
TEXT_COLUMNS = ("text", "sentence", "review", "content", "document", "comment", "tweet", "question")
LABEL_COLUMNS = ("label", "labels", "class", "category", "sentiment", "target", "label_text", "coarse_label")


class Columns(NamedTuple):
    text: str
    label: str
    pair: str | None  # of the second text, if there are pairs


def find_tables(
    name: str, config: str | None = None, options: dict[str, Any] | None = None, limits: dict | None = None
) -> dict:
    """split -> `datasets.Dataset`

    Args:
        config: of a data set on the Hub that has several.
        options, limits: of data that are made, see `make_splits`.
    """
    if name in MAKERS:
        return make_splits(name, options or {}, limits or {})
    if options:
        raise ValueError(f"options are for {' and '.join(MAKERS)}, which are made; {name!r} is not.")
    path = Path(name).expanduser()
    if name in REPOSITORIES or name == RETRIEVAL:
        folder = Path(os.environ.get(DATA_FOLDER, ".")).expanduser()
        if DATA_FOLDER in os.environ and not folder.is_dir():
            raise ValueError(f"{DATA_FOLDER}={str(folder)!r} is not a folder.")
        path = folder / name
        if DATA_FOLDER not in os.environ or not path.is_dir():
            return hub_tables(name, REPOSITORIES.get(name), config)
    if path.exists():
        return file_tables(path)
    return hub_tables(name, name, config)


def hub_tables(name: str, repository: str | None, config: str | None, names: Sequence[str] = NAMES) -> dict:
    """From the Hub, or from the cache of `datasets` if there is no network.

    Args:
        names: what else `name` could have been.
    """
    if repository is None:
        raise ValueError(
            f"{name} is not on the Hub: the folder that the variable {DATA_FOLDER} names "
            f"({os.environ.get(DATA_FOLDER, 'not set')}) must hold Long Range Arena's files as "
            f"{name}/new_aan_pairs.*.tsv."
        )
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    if repository == name and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise ValueError(f"unknown texts {name!r}: there are {', '.join(names)}, a file, a folder, or the Hub's.")
    try:
        with bars_on_terminals():
            return dict(load_dataset(repository, config))
    except (OSError, ValueError, DatasetsError) as error:
        reason = " ".join(str(error).split())
        if repository == name:
            raise ValueError(
                f"unknown texts {name!r}: there are {', '.join(names)}, the path of a file or folder of CSV, JSON "
                f"lines or parquet, or a data set on the Hub, where this one can't be read: {reason}"
            ) from error
        raise ValueError(
            f"{name} is not in the folder that the variable {DATA_FOLDER} names "
            f"({os.environ.get(DATA_FOLDER, 'not set')}), which should hold it as {name}/*.parquet, and {repository} "
            f"can't be read from the Hub: {reason}"
        ) from error


def file_tables(path: Path) -> dict:
    """Of a file, of a folder of files of one kind, or of what `save_to_disk` wrote."""
    if (saved := saved_splits(path)) is not None:
        return saved
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix.lower() in KINDS)
    arena = [file for file in files if ARENA.fullmatch(file.name)]
    return read_tables(arena or files, path if path.is_dir() else path.parent, str(path))


def read_tables(files: list[Path], root: Path, where: str) -> dict:
    """Of files of one kind, whose names, or folders inside `root`, may say the splits."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    kinds, groups = sorted({file.suffix.lower() for file in files}), {}
    if not set(kinds) & set(KINDS):
        raise ValueError(f"{where} must be a file of {', '.join(KINDS)}, or a folder of them.")
    if len(kinds) > 1:
        raise ValueError(f"{where} holds files of several kinds ({', '.join(kinds)}): give the folder or file of one.")
    arena = ARENA.fullmatch(files[0].name)
    for file in files:
        split = ARENA.fullmatch(file.name)[1] if arena else split_of(file, root)
        groups.setdefault(split, []).append(str(file))
    kind, reading = KINDS[kinds[0]], {}
    if kind == "csv":
        reading = {"sep": "\t" if kinds[0] == ".tsv" else ",", "keep_default_na": False}  # "None" is a word too
    if arena:
        reading |= {"names": ARENA_COLUMNS, "header": None, "quoting": csv.QUOTE_NONE}
    try:
        with bars_on_terminals():
            return dict(load_dataset(kind, data_files=groups, **reading))
    except (OSError, ValueError, DatasetsError) as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ValueError(f"{where} can't be read as {kind}: {reason}") from error


def pick_columns(features, where: str, text: str | None, label: str | None, pair: str | None) -> Columns:
    """Which columns hold what: those that are named, else those with usual names, if there is one of each."""
    for option, named in (("text_column", text), ("label_column", label), ("text_pair_column", pair)):
        if named is not None and named not in features:
            raise ValueError(f"{option}={named!r}: {where} has the columns {', '.join(features)}.")
    if list(features) == ARENA_COLUMNS and text is None and pair is None:
        text, pair = ARENA_COLUMNS[3:]
    words = word_columns(features)
    label = label or only("label_column", where, features, LABEL_COLUMNS, [])
    others = [name for name in words if name not in (label, pair)]
    text = text or only("text_column", where, others or features, TEXT_COLUMNS, others)
    for option, name in (("text_column", text), ("text_pair_column", pair)):
        if name is not None and name not in words:
            raise ValueError(f"{option}={name!r}: {where} holds {describe(features[name])} there, not texts.")
    if label in (text, pair) or text == pair:
        raise ValueError(f"text_column={text!r}, label_column={label!r} and text_pair_column={pair!r} must differ.")
    return Columns(text, label, pair)


def word_columns(features) -> list[str]:
    return [name for name in features if getattr(features[name], "dtype", None) in ("string", "large_string")]


def only(option: str, where: str, columns: Sequence[str], usual: Sequence[str], rest: Sequence[str]) -> str:
    """The one column with a usual name; if none has, the only one of the `rest`."""
    found = [name for name in columns if name.lower() in usual] or list(rest)
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{option} is ambiguous: {where} has {' and '.join(map(repr, found))}. Set {option} to one.")
    raise ValueError(
        f"{option} is missing: {where} has the columns {', '.join(columns)}, and none is called "
        f"{', '.join(usual[:4])} or the like. Set {option} to one."
    )


def describe(feature) -> str:
    return getattr(feature, "dtype", None) or type(feature).__name__
