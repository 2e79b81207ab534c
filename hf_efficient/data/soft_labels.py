"""Labels that are shares of classes: from mixed images and from label smoothing, and the loss that takes them."""

import torch
import torch.nn.functional as F
from torch import Tensor


def soften(
    labels: Tensor, num_classes: int, smoothing: float, partners: Tensor | None = None, weight: Tensor | None = None
) -> Tensor:
    """Class indices (B,) -> shares (B, num_classes) that add up to 1.

    Args:
        smoothing: the share that is spread over all classes.
        partners, weight: (B,), the labels of what was mixed in, and how much of the image is still its own.
    """
    soft = F.one_hot(labels, num_classes).float()
    if partners is not None:
        soft = torch.lerp(F.one_hot(partners, num_classes).float(), soft, weight[:, None])
    return soft * (1 - smoothing) + smoothing / num_classes


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
