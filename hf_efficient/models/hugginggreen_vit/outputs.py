"""What the models of HuggingGreenViT return: transformers' outputs, and what selection and routing did."""

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput, MaskedImageModelingOutput
from transformers.utils import ModelOutput


@dataclass
class HuggingGreenViTModelOutput(BaseModelOutputWithPooling):
    """
    Args:
        patch_indices: (B, k), the kept patches, counted row by row; None where none was dropped.
        attn_sparsity: mean over layers, in training with a sparsity regulariser.
        routing_balance: mean over layers, with head routing.
    """

    patch_indices: Tensor | None = None
    attn_sparsity: Tensor | None = None
    routing_balance: Tensor | None = None

    def passed_on(self) -> dict:
        """What outputs of heads repeat."""
        names = ("hidden_states", "attentions", "patch_indices", "attn_sparsity", "routing_balance")
        return {name: getattr(self, name) for name in names}


@dataclass
class HuggingGreenViTImageClassifierOutput(ImageClassifierOutput):
    patch_indices: Tensor | None = None
    attn_sparsity: Tensor | None = None
    routing_balance: Tensor | None = None


@dataclass
class HuggingGreenViTMaskedImageModelingOutput(MaskedImageModelingOutput):
    """`bool_masked_pos` (B, n): the mask that was used."""

    patch_indices: Tensor | None = None
    bool_masked_pos: Tensor | None = None
    attn_sparsity: Tensor | None = None
    routing_balance: Tensor | None = None


@dataclass
class HuggingGreenViTObjectDetectionOutput(ModelOutput):
    """logits (B, Q, num_labels + 1), the last for "no object"; pred_boxes (B, Q, 4), cx, cy, w, h in [0, 1]"""

    loss: Tensor | None = None
    loss_dict: dict | None = None
    logits: Tensor | None = None
    pred_boxes: Tensor | None = None
    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    patch_indices: Tensor | None = None
    attn_sparsity: Tensor | None = None
    routing_balance: Tensor | None = None
