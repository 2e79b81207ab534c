"""Scores of object detectors.

    map_50    mean over classes of the average precision, a detection being right if it overlaps an object of its
              class, not yet found, with IoU of at least 0.5
    map       the same, mean over IoU of at least 0.50, 0.55, ..., 0.95
    found_50  the share of objects found, with the right class and IoU of at least 0.5
    iou       mean over objects of the IoU with the best detection of any class

Average precision is COCO's: the highest precision at each of 101 recalls or beyond, of at most 100 detections per
image. The last two look at as many of an image's detections, the most confident, as it has objects: they are for
images of few objects, such as the one of Tiny ImageNet.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers.image_transforms import center_to_corners_format
from transformers.loss.loss_for_object_detection import box_iou

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
MOST_DETECTIONS = 100


def detection_scores(predictions: Sequence[dict], references: Sequence[dict]) -> dict[str, float]:
    """
    Args:
        predictions: for each image 'scores' (n,), 'labels' (n,) and 'boxes' (n, 4) as left, top, right, bottom.
        references: for each image 'labels' and 'boxes', in the same units.
    """
    if len(predictions) != len(references):
        raise ValueError(f"there are predictions for {len(predictions)} images and references for {len(references)}.")
    detections = [_by_confidence(prediction) for prediction in predictions]
    objects = [_arrays(reference, ("labels",)) for reference in references]
    labels = np.concatenate([np.zeros(0, np.int64), *(truth["labels"] for truth in objects)])
    if not len(labels):
        raise ValueError("references has no objects: there is nothing to score.")
    averages = _average_precisions(detections, objects, labels)  # (classes, thresholds)
    found, overlaps = np.concatenate([_most_confident(*pair) for pair in zip(detections, objects, strict=True)]).T
    return {
        "map": float(averages.mean()),
        "map_50": float(averages[:, 0].mean()),
        "found_50": float(found.mean()),
        "iou": float(overlaps.mean()),
    }


def read_queries(logits: Tensor, pred_boxes: Tensor) -> list[dict[str, Tensor]]:
    """What a model with queries detected: each query its most likely class.

    Args:
        logits: (B, Q, classes + 1), the last for "no object".
        pred_boxes: (B, Q, 4) as cx, cy, w, h.
    """
    scores, labels = logits.softmax(-1)[..., :-1].max(-1)  # (B, Q)
    names = ("scores", "labels", "boxes")
    images = zip(scores, labels, center_to_corners_format(pred_boxes), strict=True)
    return [dict(zip(names, image, strict=True)) for image in images]


def overlaps_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of corners (n, 4) and (m, 4): (n, m); 0 for two boxes without area"""
    return box_iou(torch.from_numpy(a), torch.from_numpy(b))[0].nan_to_num(0).numpy()


def match(overlaps: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Which detections, the most confident first, find an object that none before found: (detections, thresholds).

    Args:
        overlaps: IoU (detections, objects)
    """
    hits = np.zeros((len(overlaps), len(thresholds)), bool)
    free = np.ones((len(thresholds), overlaps.shape[1]), bool)
    each = np.arange(len(thresholds))
    for index, overlap in enumerate(overlaps):
        left = np.where(free, overlap, -1.0)
        best = left.argmax(1)
        hits[index] = left[each, best] >= thresholds
        free[each, best] &= ~hits[index]
    return hits


def _average_precisions(detections: list[dict], objects: list[dict], labels: np.ndarray) -> np.ndarray:
    """(classes, thresholds), of the classes that `labels` of the objects has"""
    hits = [np.zeros((len(seen["labels"]), len(THRESHOLDS)), bool) for seen in detections]
    for hit, seen, truth in zip(hits, detections, objects, strict=True):
        for label in np.intersect1d(truth["labels"], seen["labels"]):
            rows = seen["labels"] == label
            hit[rows] = match(overlaps_of(seen["boxes"][rows], truth["boxes"][truth["labels"] == label]), THRESHOLDS)
    scores = np.concatenate([seen["scores"] for seen in detections])
    detected = np.concatenate([seen["labels"] for seen in detections])
    hits = np.concatenate(hits)
    order = np.argsort(-scores, kind="stable")
    detected, hits = detected[order], hits[order]
    classes, counts = np.unique(labels, return_counts=True)
    return np.stack(
        [_average_precision(hits[detected == label], count) for label, count in zip(classes, counts, strict=True)]
    )


def _average_precision(hits: np.ndarray, count: int) -> np.ndarray:
    """Hits (detections, thresholds) of a class that has `count` objects -> (thresholds,)"""
    found = hits.cumsum(0)
    recall = found / count
    precision = found / np.arange(1, len(hits) + 1)[:, None]
    best_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    with_end = np.concatenate([best_from_here, np.zeros((1, hits.shape[1]))])  # recalls never reached count 0
    places = [np.searchsorted(recall[:, t], RECALLS) for t in range(hits.shape[1])]
    return np.array([with_end[place, t].mean() for t, place in enumerate(places)])


def _most_confident(seen: dict, truth: dict) -> np.ndarray:
    """(objects, 2): whether each was found, and the best overlap with it"""
    count = len(truth["labels"])
    overlaps = overlaps_of(seen["boxes"][:count], truth["boxes"])
    same = seen["labels"][:count, None] == truth["labels"]
    hits = match(np.where(same, overlaps, 0.0), THRESHOLDS[:1]).sum()
    found = np.arange(count) < hits  # how many is all that is asked
    return np.stack([found, overlaps.max(0, initial=0.0)], 1)


def _by_confidence(prediction: dict) -> dict[str, np.ndarray]:
    arrays = _arrays(prediction, ("scores", "labels"))
    order = np.argsort(-arrays["scores"], kind="stable")[:MOST_DETECTIONS]
    return {name: value[order] for name, value in arrays.items()}


def _arrays(record: dict, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    boxes = np.asarray(record["boxes"], np.float64).reshape(-1, 4)
    arrays = {name: np.asarray(record[name]) for name in names}
    for name, value in arrays.items():
        if value.shape != (len(boxes),):
            raise ValueError(f"{name} must have shape ({len(boxes)},), one per box, got {value.shape}.")
    arrays["labels"] = arrays["labels"].astype(np.int64)
    return {**arrays, "boxes": boxes}
