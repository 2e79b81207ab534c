"""Labels that are shares of classes: from mixed images and from label smoothing."""

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
