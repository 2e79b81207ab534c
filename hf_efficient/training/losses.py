"""Losses: of labels that are shares of classes, and of contrast between classes."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel


def soft_cross_entropy(outputs, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """−Σ_c y_c ln p_c, the mean over images; `compute_loss_func` of a `Trainer` for labels (B, classes) or (B,).

    Models' own loss won't do: for labels that are not integers, transformers takes sigmoids, each class for itself.
    `num_items_in_batch` is what the Trainer counts: all entries of labels, over all batches of one step.
    """
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
    if num_items_in_batch is None:
        return F.cross_entropy(logits.float(), labels)
    if torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(logits.device)
    images = num_items_in_batch / labels.shape[1] if labels.dim() == 2 else num_items_in_batch
    return F.cross_entropy(logits.float(), labels, reduction="sum") / images


def soft_label_loss(model: PreTrainedModel) -> Callable:
    """The cross-entropy for labels that are shares of classes, with what the model itself adds to its loss."""
    penalty = getattr(model, "penalty", lambda outputs: 0.0)

    def loss(outputs, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        share = 1 if num_items_in_batch is None else labels.numel() / num_items_in_batch
        return soft_cross_entropy(outputs, labels, num_items_in_batch) + share * penalty(outputs)

    return loss


def contrastive_loss(embeddings: Tensor, labels: Tensor, margin: float = 1.0, negatives: str = "hard") -> Tensor:
    """Hard-negative contrast (HuggingGreen, research question 3): classes come together, and keep apart.

        L = mean over anchors a of [ mean over positives p of D(a, p)² + max(0, m − D(a, n))² ],  D(a, b) = ‖z_a − z_b‖

    p are the other images of a's class in the batch, and n is one image of another class. The authors' code compares
    labels with 0 and 1 and takes the farthest negative, which is the easiest. An anchor without a positive or without
    a negative doesn't count. Without any anchor the loss is 0.

    Args:
        embeddings: z (B, d), of length 1.
        labels: (B,)
        margin: m.
        negatives: "hard", the nearest, or "random", any, as the paper words it.
    """
    squared = (2 - 2 * embeddings @ embeddings.mT).clamp_min(0)  # (B, B): D²
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    anchors = positive.any(1) & ~same.all(1)
    if not anchors.any():
        return embeddings.sum() * 0
    squared, same, positive = squared[anchors], same[anchors], positive[anchors]
    attracted = (squared * positive).sum(1) / positive.sum(1)
    order = squared.detach() if negatives == "hard" else torch.rand_like(squared)
    chosen = order.masked_fill(same, torch.inf).argmin(1, keepdim=True)
    distance = squared.gather(1, chosen).squeeze(1).clamp_min(1e-12).sqrt()  # whose slope at 0 is infinite
    return (attracted + F.relu(margin - distance).square()).mean()
