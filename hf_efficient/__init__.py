"""Efficient transformers that behave like any other Hugging Face model."""

from . import attention

__version__ = "0.1.0"

__all__ = ["__version__", "attention"]
