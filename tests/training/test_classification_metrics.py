"""Accuracy and F1 against scikit-learn, and micro-F1 against the accuracy."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from hf_efficient.training.metrics import ClassificationMetric, classification_scores


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_scores_are_scikit_learns(classes):
    random = np.random.default_rng(classes)
    references = random.integers(0, classes, 300)
    predictions = np.where(random.random(300) < 0.6, references, random.integers(0, classes, 300))
    scores = classification_scores(predictions, references)
    assert scores["accuracy"] == pytest.approx(accuracy_score(references, predictions))
    for average in ("micro", "macro"):
        assert scores[f"{average}_f1"] == pytest.approx(f1_score(references, predictions, average=average))
    assert scores["micro_f1"] == pytest.approx(scores["accuracy"])  # always, with one label per image


def test_classes_predicted_but_not_there_count():
    assert classification_scores([0, 0, 2], [0, 0, 1])["macro_f1"] == pytest.approx(1 / 3)


def test_the_metric():
    found = ClassificationMetric().compute(predictions=[0, 1, 1, 5], references=[0, 1, 0, 5])
    assert found == pytest.approx(classification_scores([0, 1, 1, 5], [0, 1, 0, 5]))
    metric = ClassificationMetric()
    metric.add_batch(predictions=[0, 1], references=[0, 1])
    metric.add_batch(predictions=[1, 5], references=[0, 5])
    assert metric.compute() == pytest.approx(found)


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [([], [], "references is empty"), ([0, 1], [0], "one for each image"), ([[0.1, 0.9]], [[1, 1]], "must be labels")],
)
def test_bad_input(predictions, references, message):
    with pytest.raises(ValueError, match=message):
        classification_scores(predictions, references)
