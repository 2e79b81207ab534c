"""Losses that a Trainer is given as `compute_loss_func`."""

from collections.abc import Callable

from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from ..data.soft_labels import soft_cross_entropy


def soft_label_loss(model: PreTrainedModel) -> Callable:
    """The cross-entropy for labels that are shares of classes, with what the model itself adds to its loss."""
    penalty = getattr(model, "penalty", lambda outputs: 0.0)

    def loss(outputs, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        share = 1 if num_items_in_batch is None else labels.numel() / num_items_in_batch
        return soft_cross_entropy(outputs, labels, num_items_in_batch) + share * penalty(outputs)

    return loss
