"""What the language model returns beside transformers' fields."""

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
