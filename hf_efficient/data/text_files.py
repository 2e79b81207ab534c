"""Texts that language models read, in files and on the Hub: which splits are there, each as one text.

csv, tsv, jsonl, json, parquet   the texts in a column, a blank line between them
any other file                   its bytes
a folder, or a pattern as a/*.txt   the files in it, of one of these kinds, whose names may say the splits
save_to_disk                     of `datasets`
<owner>/<name>                   of the Hub, or of the cache of `datasets` if there is no network
"""

import glob
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from .split_names import split_of
from .text import NAMES, load_text
from .text_sources import KINDS, TEXT_COLUMNS, file_tables, hub_tables, only, read_tables, word_columns

BETWEEN = b"\n\n"


class FoundTexts(NamedTuple):
    splits: dict[str, bytes]
    skipped: list[str]  # rows that were left out, and why


def find_texts(
    name: str, text_column: str | None = None, config: str | None = None, skip_corrupt: bool = False
) -> FoundTexts:
    """
    Args:
        text_column: of tables; usual names are found.
        config: of a data set on the Hub that has several.
        skip_corrupt: leave out rows without a text, rather than stop.
    """
    path = Path(name).expanduser()
    if name in NAMES or (path.is_file() and path.suffix.lower() not in KINDS):
        return FoundTexts({"train": load_text(path if path.is_file() else name)}, [])
    if path.exists():
        if plain := plain_files(path):
            return FoundTexts(join_files(plain, path), [])
        tables = file_tables(path)
    elif matches := sorted(Path(file) for file in glob.glob(str(path), recursive=True) if Path(file).is_file()):
        root = Path(*path.parts[: next(i for i, part in enumerate(path.parts) if glob.has_magic(part))])
        if not any(file.suffix.lower() in KINDS for file in matches):
            return FoundTexts(join_files(matches, root), [])
        tables = read_tables(matches, root, name)
    else:
        tables = hub_tables(name, name, config, NAMES)
    splits, skipped = {}, []
    for split, table in tables.items():
        splits[split], faults = join_rows(table, f"{name}, split {split!r},", text_column)
        if faults and not skip_corrupt:
            more = f", and {len(faults) - 1:,} more are like that" if len(faults) > 1 else ""
            raise ValueError(f"{faults[0]}{more}: mend them, or set skip_corrupt to leave out.")
        skipped += faults
    return FoundTexts(splits, skipped)


def plain_files(path: Path) -> list[Path]:
    """The files of a folder that holds texts as they are, and no tables."""
    files = sorted(x for x in path.rglob("*") if x.is_file() and not x.name.startswith("."))
    tables = [file for file in files if file.suffix.lower() in KINDS]
    texts = [file for file in files if file.suffix.lower() == ".txt"]
    if tables and texts:
        raise ValueError(f"{path} holds both {texts[0].name} and {tables[0].name}: give a pattern, as {path}/*.txt.")
    if not files and path.is_dir():
        raise ValueError(f"{path} has no files.")
    return [] if tables else files


def join_files(files: list[Path], root: Path) -> dict[str, bytes]:
    groups: dict[str, list[bytes]] = {}
    for file in files:
        groups.setdefault(split_of(file, root), []).append(file.read_bytes().strip())
    return {split: BETWEEN.join(filter(None, texts)) for split, texts in groups.items()}


def join_rows(table, where: str, text_column: str | None) -> tuple[bytes, list[str]]:
    """The texts of a column as one, and what is wrong with rows that have none; an empty text is one."""
    words = word_columns(table.features)
    column = text_column or only("text_column", where, words or list(table.features), TEXT_COLUMNS, words)
    if column not in words:
        raise ValueError(f"text_column={column!r}: {where} has the columns of text {', '.join(words) or 'none'}.")
    cells = table.select_columns([column]).with_format("arrow")[:][column].cast(pa.large_binary()).to_pylist()
    texts, faults = [], []
    for row, cell in enumerate(cells):
        try:
            fault = "no text" if cell is None else cell.decode() and None
        except UnicodeDecodeError as error:
            fault = f"no UTF-8: {error}"
        if fault:
            faults.append(f"text_column={column!r}: {where} row {row}, holds {fault}")
        elif cell:
            texts.append(cell)
    return BETWEEN.join(texts), faults
