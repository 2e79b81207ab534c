"""Where data are found, and where what was made of them is kept: two environment variables name the folders."""

import os
from pathlib import Path

DATA_FOLDER = "HF_EFFICIENT_DATA"
CACHE_FOLDER = "HF_EFFICIENT_CACHE"


def cache_folder() -> Path:
    """HF_EFFICIENT_CACHE, or hf_efficient in HF_HOME, or else in ~/.cache"""
    if CACHE_FOLDER in os.environ:
        return Path(os.environ[CACHE_FOLDER]).expanduser()
    return Path(os.environ.get("HF_HOME", "~/.cache")).expanduser() / "hf_efficient"
