"""Scores of classifiers, object detectors and language models."""

from .classification import classification_scores
from .detection import detection_scores, read_queries
from .language_model import LanguageModelScores

__all__ = ["LanguageModelScores", "classification_scores", "detection_scores", "read_queries"]
