"""IoU and accuracy of pixels, beside a literal count."""

import numpy as np
import pytest
import torch

from hf_efficient.training.metrics import confusion, segmentation_scores
from hf_efficient.training.metrics.segmentation import iou_by_class


def literally(predictions, labels, classes: int) -> dict[str, float]:
    """Pixel by pixel, as the definitions have it."""
    pairs = [
        (t, p) for t, p in zip(labels.flatten().tolist(), predictions.flatten().tolist(), strict=True) if t != 255
    ]
    ious, accuracies = [], []
    for kind in range(classes):
        both = sum(t == kind and p == kind for t, p in pairs)
        either = sum(t == kind or p == kind for t, p in pairs)
        there = sum(t == kind for t, _ in pairs)
        if either:
            ious.append(both / either)
        if there:
            accuracies.append(both / there)
    return {
        "mean_iou": sum(ious) / len(ious),
        "pixel_accuracy": sum(t == p for t, p in pairs) / len(pairs),
        "mean_accuracy": sum(accuracies) / len(accuracies),
    }


@pytest.mark.parametrize("missing", [False, True])
def test_scores_are_a_literal_count(missing):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (3, 7, 9), generator=generator)
    predictions = torch.where(torch.rand(3, 7, 9, generator=generator) < 0.6, labels, 4 - labels)
    if missing:  # class 1 is nowhere, and class 2 is not there but predicted
        predictions[predictions == 1], predictions[0, 0, 0] = 0, 2
        labels[(labels == 1) | (labels == 2)] = 0
    labels[torch.rand(3, 7, 9, generator=generator) < 0.2] = 255
    counts = confusion(predictions, labels, 5)
    assert counts.shape == (3, 5, 5) and counts.sum() == (labels != 255).sum()
    assert segmentation_scores(counts.sum(0).numpy()) == pytest.approx(literally(predictions, labels, 5))
    each = iou_by_class(counts.sum(0).numpy())
    assert np.nanmean(each) == pytest.approx(segmentation_scores(counts.sum(0).numpy())["mean_iou"])
    assert np.isnan(each[1]) == missing


def test_nothing_to_score():
    with pytest.raises(ValueError, match="no pixels to score"):
        segmentation_scores(np.zeros((2, 2)))
