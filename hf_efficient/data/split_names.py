"""How files, folders and data sets call their splits."""

import re
from pathlib import Path

TRAINING_NAMES = ("train", "training")
VALIDATION_NAMES = ("validation", "valid", "val", "dev", "eval")
EVALUATION_NAMES = (*VALIDATION_NAMES, "test")  # the first that is there is taken
SPLIT_NAMES = (*TRAINING_NAMES, *EVALUATION_NAMES)


def split_of(file: Path, root: Path) -> str:
    """The split that a word of the file's name, or a folder inside `root`, is called by; else "train"."""
    words = re.findall(r"(?<![a-z])[a-z]+(?=[-_.\d]|$)", file.stem.lower())
    folders = [folder.lower() for folder in file.relative_to(root).parts[:-1]]
    return next((word for word in (*words, *reversed(folders)) if word in SPLIT_NAMES), "train")
