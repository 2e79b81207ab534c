"""The model families, one folder each. Importing this package registers them with transformers' Auto classes."""

from .auto import FAMILIES, import_family, register

__all__ = []

for _model_type in FAMILIES:
    _classes = import_family(_model_type)
    register(_model_type, _classes)
    globals().update(_classes)
    __all__ += _classes
