"""Small trained models that come with the package: ordinary Hugging Face folders, in half precision.

    pipeline("image-classification", model=hf_efficient.zoo.path("hugginggreen-vit-cifar10"))

`experiments/zoo.py` makes them.
"""

import difflib
from pathlib import Path

FOLDER = Path(__file__).parent


def list() -> "list[str]":
    """The names of all models."""
    return sorted(file.parent.name for file in FOLDER.glob("*/config.json"))


def path(name: str) -> str:
    """The folder of a model, for `from_pretrained` and `pipeline`."""
    if name not in (known := list()):
        close = difflib.get_close_matches(name, known, 1, 0.5)
        hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(known)}."
        raise ValueError(f"the zoo has no model {name!r}. {hint}")
    return str(FOLDER / name)
