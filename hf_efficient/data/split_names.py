"""How files, folders and data sets call their splits."""

import re
from pathlib import Path

TRAINING_NAMES = ("train", "training")
EVALUATION_NAMES = ("validation", "valid", "val", "dev", "eval", "test")  # the first that is there is taken
SPLIT_NAMES = (*TRAINING_NAMES, *EVALUATION_NAMES)


def split_of(file: Path, root: Path) -> str:
    """The word that the file's name begins with, or its folder inside `root` is called; "train" if neither is one."""
    begins = re.match(r"[a-z]+(?=[-_.\d]|$)", file.stem.lower())
    folders = file.relative_to(root).parts[:-1]
    for word in (begins and begins[0], *reversed([folder.lower() for folder in folders])):
        if word in SPLIT_NAMES:
            return word
    return "train"
