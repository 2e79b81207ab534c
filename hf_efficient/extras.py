"""The optional dependencies, by the extra that installs them: pip install "hf-efficient[train]"."""

from importlib.util import find_spec

from .errors import CommandError

# The modules of each extra in pyproject.toml that a command may ask for.
EXTRAS = {
    "train": ("datasets", "accelerate", "psutil", "sklearn", "scipy", "matplotlib"),
    "energy": ("codecarbon",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "serve": ("fastapi", "uvicorn", "openai"),
    "app": ("gradio",),
}


class MissingExtraError(CommandError):
    """A dependency that is not installed."""


def require(*extras: str) -> None:
    """Raises if anything of these extras is missing."""
    wanting = {extra: [name for name in EXTRAS[extra] if find_spec(name) is None] for extra in extras}
    missing = [name for names in wanting.values() for name in names]
    if missing:
        needed = ",".join(extra for extra, names in wanting.items() if names)
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(f'{", ".join(missing)} {verb} missing: pip install "hf-efficient[{needed}]"')
