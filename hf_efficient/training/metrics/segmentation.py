"""Scores of semantic segmentation, from one table of all pixels that count: true class by predicted class.

    mean_iou         mean over classes of |truth ∩ prediction| / |truth ∪ prediction|
    pixel_accuracy   the share of pixels whose class was found
    mean_accuracy    mean over classes of the share of their pixels that was found

A class that is neither there nor predicted counts in neither mean; one that is not there has no accuracy.
"""

import numpy as np
import torch
from torch import Tensor


def confusion(predictions: Tensor, labels: Tensor, classes: int, ignored: int = 255) -> Tensor:
    """Counts of pixels (B, true class, predicted class) of maps (B, H, W), without those whose label is `ignored`."""
    image = torch.arange(len(labels), device=labels.device).view(-1, 1, 1)
    cells = (image * classes + labels) * classes + predictions
    return cells[labels != ignored].bincount(minlength=len(labels) * classes**2).view(-1, classes, classes)


def segmentation_scores(counts: np.ndarray) -> dict[str, float]:
    """Of the counts of all pixels (true class, predicted class)."""
    counts = np.asarray(counts, np.float64)
    if not counts.sum():
        raise ValueError("there are no pixels to score: all of them are ignored.")
    right, true, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    union = true + predicted - right
    return {
        "mean_iou": float((right[union > 0] / union[union > 0]).mean()),
        "pixel_accuracy": float(right.sum() / counts.sum()),
        "mean_accuracy": float((right[true > 0] / true[true > 0]).mean()),
    }


def iou_by_class(counts: np.ndarray) -> np.ndarray:
    """(classes,); NaN for one that is neither there nor predicted"""
    counts = np.asarray(counts, np.float64)
    right = counts.diagonal()
    with np.errstate(invalid="ignore"):
        return right / (counts.sum(0) + counts.sum(1) - right)
