"""Where data are found, and where what was made of them is kept: two environment variables name the folders."""

import os
import shutil
from pathlib import Path

DATA_FOLDER = "HF_EFFICIENT_DATA"
CACHE_FOLDER = "HF_EFFICIENT_CACHE"
KEPT = ("images", "features", "text")  # folders in the cache: all that is ours there


def cache_folder() -> Path:
    """HF_EFFICIENT_CACHE, or hf_efficient in HF_HOME, or else in ~/.cache"""
    if CACHE_FOLDER in os.environ:
        return Path(os.environ[CACHE_FOLDER]).expanduser()
    return Path(os.environ.get("HF_HOME", "~/.cache")).expanduser() / "hf_efficient"


def cached_bytes() -> dict[str, int]:
    """How large each part of the cache is."""
    files = {part: [x for x in (cache_folder() / part).rglob("*") if x.is_file()] for part in KEPT}
    return {part: sum(file.stat().st_size for file in found) for part, found in files.items()}


def clear_cache() -> None:
    for part in KEPT:
        shutil.rmtree(cache_folder() / part, ignore_errors=True)
