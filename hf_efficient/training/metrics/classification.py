"""Accuracy and F1 of classifiers with one label per image.

    accuracy   the share of images whose label was found
    micro_f1   F1 of all classes' hits, misses and false alarms together; with one label per image, it is the accuracy
    macro_f1   the mean of the classes' own F1 = 2·hits / (2·hits + misses + false alarms)

As in scikit-learn, a class that is neither there nor predicted doesn't count.
"""

from collections.abc import Sequence

import datasets
import evaluate
import numpy as np


def classification_scores(predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
    """Of predicted and true labels (N,)."""
    predictions, references = np.asarray(predictions), np.asarray(references)
    if predictions.shape != references.shape or predictions.ndim != 1:
        raise ValueError(
            f"predictions {predictions.shape} and references {references.shape} must be labels, one for each image."
        )
    if not len(references):
        raise ValueError("references is empty: there is nothing to score.")
    labels, places = np.unique(np.concatenate([references, predictions]), return_inverse=True)
    true, predicted = np.split(places, 2)
    hits = np.bincount(true[true == predicted], minlength=len(labels))
    misses = np.bincount(true, minlength=len(labels)) - hits
    false_alarms = np.bincount(predicted, minlength=len(labels)) - hits
    return {
        "accuracy": float((predictions == references).mean()),
        "micro_f1": _f1(hits.sum(), misses.sum(), false_alarms.sum()).item(),
        "macro_f1": _f1(hits, misses, false_alarms).mean().item(),
    }


def _f1(hits, misses, false_alarms):
    return 2 * hits / (2 * hits + misses + false_alarms)


class ClassificationMetric(evaluate.Metric):
    """`ClassificationMetric().compute(predictions=[...], references=[...])`"""

    def _info(self):
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description=classification_scores.__doc__,
            features=datasets.Features({name: datasets.Value("int64") for name in ("predictions", "references")}),
        )

    def _compute(self, predictions, references):
        return classification_scores(predictions, references)
