"""Refuses files of a model that name others outside its folder: transformers would read whatever they name."""

import json
from pathlib import Path, PureWindowsPath

TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")
# What a tokenizer opens, beside every key on `_file` or `_files`.
OPENED = ("vocab", "merges", "init_inputs")
UNREAD = ("special_tokens_map_file",)  # old checkpoints hold their author's path here


def check_folder(folder: str | Path) -> None:
    """Raises if shards of an index or files of a tokenizer lie outside the folder.

    For a repository's name this does nothing: there the Hub's client checks shards, and `hf_efficient.hub.pull` all.
    """
    for index in sorted(Path(folder).glob("*.index.json")):
        check_shard_index(index)
    for name in TOKENIZER_FILES:
        check_tokenizer(Path(folder, name))


def check_shard_index(index: str | Path) -> None:
    """Raises for a `*.index.json` that is none, or whose shards are not beside it."""
    try:
        shards = set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is no index of weights: {type(error).__name__}: {error}.") from error
    for shard in sorted(shards, key=str):
        if not isinstance(shard, str) or leaves_folder(shard):
            raise ValueError(f"{index}: the shard {shard!r} lies outside the folder; it will not be loaded.")


def check_tokenizer(file: Path) -> None:
    """Raises if a tokenizer's configuration names a file that is not beside it."""
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # missing, or nothing that a tokenizer could read either
        return
    for key, value in fields.items() if isinstance(fields, dict) else ():
        if key in UNREAD or not (key in OPENED or key.endswith(("_file", "_files"))):
            continue
        # A list of words is a vocabulary itself; a single word is where it lies.
        names = value if isinstance(value, list) and key not in ("vocab", "merges") else [value]
        for name in names:
            if isinstance(name, str) and (leaves_folder(name) or not (file.parent / name).is_file()):
                raise ValueError(f"{file}: {key} names {name!r}, no file of the folder; it will not be loaded.")


def leaves_folder(name: str) -> bool:
    """Whether a name is absolute, climbs with `..`, or would on another system."""
    anchor = PureWindowsPath(name).anchor  # a drive, or a leading slash of either kind
    return bool(anchor) or ".." in name.split("/") or "\\" in name or "\0" in name
