"""Pluggable attention: one mechanism, one file. Importing this package registers every file in it."""

import importlib
import pkgutil

from .base import Attention, AttentionOutput
from .convert import ConversionReport, convert_attention, load_converted
from .distil import DistilReport, distil
from .registry import attention_options, build_attention, get_attention, list_attentions, register_attention

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f".{_module.name}", __name__)

__all__ = [
    "Attention",
    "AttentionOutput",
    "ConversionReport",
    "DistilReport",
    "attention_options",
    "build_attention",
    "convert_attention",
    "distil",
    "get_attention",
    "list_attentions",
    "load_converted",
    "register_attention",
]
