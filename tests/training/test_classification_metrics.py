"""Accuracy and F1 against their definitions."""

import numpy as np
import pytest

from hf_efficient.training.metrics import classification_scores


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_scores_are_their_definitions(classes):
    random = np.random.default_rng(classes)
    references = random.integers(0, classes, 300)
    predictions = np.where(random.random(300) < 0.6, references, random.integers(0, classes, 300))
    scores = classification_scores(predictions, references)
    assert scores["accuracy"] == pytest.approx((predictions == references).mean())
    assert scores["micro_f1"] == pytest.approx(scores["accuracy"])  # always, with one label per image
    f1 = []
    for label in np.union1d(references, predictions):
        hits = ((predictions == label) & (references == label)).sum()
        f1.append(2 * hits / ((predictions == label).sum() + (references == label).sum()))
    assert scores["macro_f1"] == pytest.approx(np.mean(f1))


def test_classes_predicted_but_not_there_count():
    assert classification_scores([0, 0, 2], [0, 0, 1])["macro_f1"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [([], [], "references is empty"), ([0, 1], [0], "the same length"), ([[0.1, 0.9]], [[1, 1]], "lists of labels")],
)
def test_bad_input(predictions, references, message):
    with pytest.raises(ValueError, match=message):
        classification_scores(predictions, references)
