"""Accuracy and F1 of classifiers with one label per image or text.

    accuracy   the share of samples whose label was found
    micro_f1   F1 of all classes' hits, misses and false alarms together; with one label each, it is the accuracy
    macro_f1   the mean of the classes' own F1 = 2·hits / (2·hits + misses + false alarms)

scikit-learn computes them; a class that is neither there nor predicted doesn't count.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, f1_score

METRICS = ("accuracy", "micro_f1", "macro_f1")


def classification_scores(predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
    """Of predicted and true labels (N,)."""
    predictions, references = np.asarray(predictions), np.asarray(references)
    if predictions.shape != references.shape or predictions.ndim != 1:
        raise ValueError(
            "predictions and references must be lists of labels of the same length, "
            f"got shapes {predictions.shape} and {references.shape}."
        )
    if not len(references):
        raise ValueError("references is empty: there is nothing to score.")
    return {
        "accuracy": float(accuracy_score(references, predictions)),
        "micro_f1": float(f1_score(references, predictions, average="micro")),
        "macro_f1": float(f1_score(references, predictions, average="macro")),
    }


def score(prediction) -> dict[str, float]:
    """For Trainer's `compute_metrics`: logits (N, classes) and labels (N,) of all samples at once, since the mean over
    batches would give those of the last, smaller one more weight."""
    logits, labels = (torch.from_numpy(x) for x in prediction)
    scores = classification_scores(logits.argmax(-1), labels)
    return {**scores, "loss": F.cross_entropy(logits.float(), labels).item()}
