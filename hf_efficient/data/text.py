"""Text as language models read it: corpora by name or path, the paper's cleaning, and splits.

Two presets. `paper` (Compressive Performers, section 3): XHTML tags removed; at most 95 MB for characters, 50 MB for
BPE (not stated there), 25 MB for words; split 90:5:5, for words 80:10:10. `standard`: the raw first 90, 5 and 5 MB of
enwik8, as everybody else reports it. A corpus shorter than a preset's is split in the same proportions.
"""

import html
import os
import re
from pathlib import Path
from typing import NamedTuple

from .folders import DATA_FOLDER

LEVELS = ("byte", "bpe", "word")
PRESETS = ("paper", "standard")
PAPER_BYTES = {"byte": 95_000_000, "bpe": 50_000_000, "word": 25_000_000}
STANDARD_BYTES = 100_000_000
SHARES = {"byte": (90, 5, 5), "bpe": (90, 5, 5), "word": (80, 10, 10)}
NAMES = ("enwik8", "pydocs")
HUB_ENWIK8 = "LTCB/enwik8"


class Splits(NamedTuple):
    train: bytes
    validation: bytes
    test: bytes


def load_text(name: str | Path) -> bytes:
    """A corpus.

    Args:
        name: "enwik8" (from the folder in HF_EFFICIENT_DATA, else from the Hub), "pydocs" (what CPython's help()
            reads), or the path of a file.
    """
    if name == "pydocs":
        from pydoc_data.topics import topics

        return "\n\n".join(topics[key] for key in sorted(topics)).encode()
    if name == "enwik8":
        return _load_enwik8()
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"unknown text {str(name)!r}: there are 'enwik8', 'pydocs', or the path of a file.")
    return path.read_bytes()


def _load_enwik8() -> bytes:
    if DATA_FOLDER not in os.environ:
        return _download_enwik8()
    folder = Path(os.environ[DATA_FOLDER]) / "enwik8"
    for name in ("enwik8", "enwik8_head"):
        if (folder / name).is_file():
            return (folder / name).read_bytes()
    raise ValueError(f"{DATA_FOLDER} is set, but {folder} has no file enwik8 or enwik8_head.")


def _download_enwik8() -> bytes:
    """From the Hub, or from the cache of `datasets` if there is no network."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:  # main holds a loading script, which `datasets` no longer runs; this branch holds what it once gave
        rows = load_dataset(HUB_ENWIK8, "enwik8-raw", split="train", revision="refs/convert/parquet")
    except (OSError, ValueError, DatasetsError) as error:
        raise ValueError(
            f"enwik8 can't be loaded from the Hub ({HUB_ENWIK8}: {error}). If you have a copy, store it as "
            f"<folder>/enwik8/enwik8 and set {DATA_FOLDER}=<folder>."
        ) from error
    text = "".join(rows["text"]).encode()
    if len(text) != STANDARD_BYTES:
        raise ValueError(f"{HUB_ENWIK8} has {len(text)} bytes instead of {STANDARD_BYTES}: it is damaged.")
    return text


def split_text(text: bytes, level: str, preset: str = "paper", own: dict[str, bytes] | None = None) -> Splits:
    """Cleans and cuts a corpus for tokens of a level; no character is cut in two.

    Args:
        own: the splits "validation" and "test" of data that have them; what is missing is cut off the text.
    """
    if level not in LEVELS:
        raise ValueError(f"level={level!r} must be one of {', '.join(LEVELS)}.")
    if preset not in PRESETS:
        raise ValueError(f"preset={preset!r} must be one of {', '.join(PRESETS)}.")
    own = {name: cleaned(part, level, preset) for name, part in (own or {}).items()}
    text, shares = cleaned(text, level, preset), SHARES[level] if preset == "paper" else (90, 5, 5)
    first, second = (
        character_start(text, len(text) * percent // 100) for percent in (shares[0], shares[0] + shares[1])
    )
    splits = Splits(text[:first], text[first:second], text[second:])
    spare = (splits._asdict()[name] for name in ("validation", "test") if name in own)
    splits = splits._replace(train=b"".join([splits.train, *spare]), **own)
    for name, part in splits._asdict().items():
        if not part:
            raise ValueError(f"a text of {len(text)} bytes is too short: nothing is left for the split {name}.")
    return splits


def cleaned(text: bytes, level: str, preset: str) -> bytes:
    if preset == "paper":
        return strip_tags(text[: character_start(text, PAPER_BYTES[level])])
    return text[: character_start(text, STANDARD_BYTES)]


def strip_tags(text: bytes) -> bytes:
    """Without XHTML tags; &lt; and its like become what they stand for first, since enwik8 holds escaped markup."""
    unescaped = html.unescape(text.decode("utf-8", "surrogateescape"))
    return re.sub(r"</?[A-Za-z][^<>]*>", "", unescaped).encode("utf-8", "surrogateescape")


def decode(text: bytes, source: str = "text") -> str:
    """Decodes UTF-8; words and BPE need characters."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source} is not UTF-8: byte 0x{text[error.start]:02x} at position {error.start}. Levels 'word' "
            "and 'bpe' need UTF-8; level 'byte' reads anything."
        ) from error


def character_start(text: bytes, at: int) -> int:
    """The first position from `at` on where a UTF-8 character begins"""
    while at < len(text) and text[at] & 0b1100_0000 == 0b1000_0000:
        at += 1
    return min(at, len(text))
