"""Accuracy and F1 of classifiers with one label per image.

    accuracy   the share of images whose label was found
    micro_f1   F1 of all classes' hits, misses and false alarms together; with one label per image, it is the accuracy
    macro_f1   the mean of the classes' own F1 = 2·hits / (2·hits + misses + false alarms)

scikit-learn computes them; a class that is neither there nor predicted doesn't count.
"""

from collections.abc import Sequence

import numpy as np
from sklearn.metrics import accuracy_score, f1_score


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
