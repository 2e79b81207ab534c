"""Efficient transformers that behave like any other Hugging Face model.

Importing this package registers every model with transformers' Auto classes, and makes the parameter-free attention
mechanisms `attn_implementation` names of transformers' models. Neither torch nor transformers' modeling is imported
before something needs them.
"""

import importlib

from . import import_warnings  # noqa: F401  before transformers' models
from .deferred import after_import
from .models import auto

__version__ = "0.1.0"
__all__ = ["attention", "hub", "layers", "models", *auto.PUBLIC_NAMES]


def __getattr__(name: str):
    if name in auto.PUBLIC_NAMES:
        return auto.load(name)
    if name in __all__:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


after_import(
    "transformers.modeling_utils", lambda: importlib.import_module(".attention.interface", __name__).connect()
)
_CONFIGS = ("transformers.configuration_utils", *auto.CONFIG_MODULES)
_BASES = ("transformers.modeling_utils", "transformers.modeling_layers", "transformers.generation.utils")
_MODELS = (*_BASES, *auto.MODEL_MODULES)
_TOKENIZERS = ("transformers.tokenization_utils_base", "transformers.tokenization_utils_tokenizers")
after_import("transformers.models.auto.configuration_auto", auto.register_configs, needs=_CONFIGS)
after_import("transformers.models.auto.image_processing_auto", auto.register_processors, needs=_CONFIGS)
after_import("transformers.models.auto.tokenization_auto", auto.register_tokenizers, needs=(*_CONFIGS, *_TOKENIZERS))
after_import("transformers.models.auto.modeling_auto", auto.register_models, needs=(*_CONFIGS, *_MODELS))
