"""What the language model returns beside transformers' fields, and how its losses add up."""

from dataclasses import dataclass

from torch import Tensor
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast


@dataclass
class CompressivePerformerOutput(BaseModelOutputWithPast):
    """transformers' fields, and `memory` after the last token, and in training the compression's `auxiliary_loss`."""

    auxiliary_loss: Tensor | None = None
    memory: Cache | None = None


@dataclass
class CompressivePerformerLMOutput(CausalLMOutputWithPast):
    """transformers' fields, and what `loss` is the sum of: `lm_loss` + weight · `auxiliary_loss` (training only)."""

    lm_loss: Tensor | None = None
    auxiliary_loss: Tensor | None = None
    memory: Cache | None = None


def weighted(
    auxiliary_loss: Tensor | None, weight: float, labels=None, shift_labels=None, num_items_in_batch=None, **kwargs
) -> Tensor | float:
    """The auxiliary loss as it enters the sum; under gradient accumulation by this part's share of the tokens."""
    if auxiliary_loss is None:
        return 0.0
    if num_items_in_batch is not None:
        targets = labels[:, 1:] if shift_labels is None else shift_labels
        weight = weight * (targets != -100).sum() / num_items_in_batch
    return weight * auxiliary_loss
