"""Efficient transformers that behave like any other Hugging Face model.

Importing this package registers every model with transformers' Auto classes, and makes the parameter-free attention
mechanisms `attn_implementation` names of transformers' models.
"""

from .torchao_messages import torchao_kept_quiet

__version__ = "0.1.0"

with torchao_kept_quiet():  # transformers imports torchao wherever it is installed
    from . import attention, hub, layers, models, zoo
    from .attention import interface
    from .data.image_processor import image_processor_for
    from .models import *  # noqa: F403

__all__ = ["attention", "hub", "image_processor_for", "layers", "models", "zoo", *models.__all__]

interface.connect()
