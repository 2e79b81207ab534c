"""Scores of classifiers, object detectors, segmentation and language models."""

from .classification import classification_scores
from .detection import detection_scores, read_queries
from .language_model import LanguageModelScores
from .segmentation import confusion, segmentation_scores

__all__ = [
    "LanguageModelScores",
    "classification_scores",
    "confusion",
    "detection_scores",
    "read_queries",
    "segmentation_scores",
]
