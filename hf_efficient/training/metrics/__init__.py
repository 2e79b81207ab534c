"""Scores, each as a function and as an `evaluate.Metric` that needs no network."""

from .classification import ClassificationMetric, classification_scores
from .detection import DetectionMetric, detection_scores, read_queries
from .language_model import LanguageModelMetric, LanguageModelScores

__all__ = [
    "ClassificationMetric",
    "DetectionMetric",
    "LanguageModelMetric",
    "LanguageModelScores",
    "classification_scores",
    "detection_scores",
    "read_queries",
]
