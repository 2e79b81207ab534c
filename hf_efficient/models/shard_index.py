"""Refuses an index of weights that points outside its folder; transformers would load what it names."""

import json
from pathlib import Path, PureWindowsPath


def check_shards(folder: str | Path) -> None:
    """Raises if an index in the folder points outside of it. On the Hub there are no such names: its client checks."""
    for index in sorted(Path(folder).glob("*.index.json")):
        check_shard_index(index)


def check_shard_index(index: str | Path) -> None:
    """Raises for a `*.index.json` that is none, or whose shards are not beside it."""
    try:
        shards = set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is no index of weights: {type(error).__name__}: {error}.") from error
    for shard in sorted(shards, key=str):
        if not isinstance(shard, str) or leaves_folder(shard):
            raise ValueError(f"{index}: the shard {shard!r} lies outside the folder; it will not be loaded.")


def leaves_folder(name: str) -> bool:
    """Whether a name is absolute, climbs with `..`, or would on another system."""
    anchor = PureWindowsPath(name).anchor  # a drive, or a leading slash of either kind
    return bool(anchor) or ".." in name.split("/") or "\\" in name or "\0" in name
