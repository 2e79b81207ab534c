"""Efficient transformers that behave like any other Hugging Face model.

Importing this package makes the parameter-free attention mechanisms `attn_implementation` names of transformers'
models. Neither torch nor transformers' modeling is imported before something needs them.
"""

import importlib

from .deferred import after_import

__version__ = "0.1.0"
__all__ = ["attention", "layers"]


def __getattr__(name: str):
    if name in __all__:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


after_import(
    "transformers.modeling_utils", lambda: importlib.import_module(".attention.interface", __name__).connect()
)
