"""Scores of object detectors.

    map_50    mean over classes of the average precision, a detection being right if it overlaps an object of its
              class, not yet found, with IoU of at least 0.5
    map       the same, mean over IoU of at least 0.50, 0.55, ..., 0.95
    map_small, map_medium, map_large   map of objects of less than 32² pixels, up to 96², and more; boxes must be in
              pixels for it. A size that no object has is left out
    found_50  the share of objects found, with the right class and IoU of at least 0.5
    iou       mean over objects of the IoU with the best detection of any class

Average precision is COCO's: the highest precision at each of 101 recalls or beyond, of at most 100 detections per
image and class. Objects of another size than the one that is looked at are neither asked for nor false alarms, and nor
are detections of another size that find nothing; pycocotools gives the same figures. The last two look at as many of
an image's detections, the most confident, as it has objects: they are for images of few objects, such as the one of
Tiny ImageNet.
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
ALL = (0, np.inf)
SIZES = {"small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, np.inf)}  # pixels, both ends inclusive


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
    if not sum(len(truth["labels"]) for truth in objects):
        raise ValueError("references has no objects: there is nothing to score.")
    averages = _average_precisions(detections, objects, ALL)  # (classes, thresholds)
    found, overlaps = np.concatenate([_most_confident(*pair) for pair in zip(detections, objects, strict=True)]).T
    by_size = {f"map_{name}": _average_precisions(detections, objects, area) for name, area in SIZES.items()}
    return {
        "map": float(averages.mean()),
        "map_50": float(averages[:, 0].mean()),
        **{name: float(found.mean()) for name, found in by_size.items() if len(found)},
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


def match(overlaps: np.ndarray, thresholds: np.ndarray, wanted: np.ndarray | None = None) -> np.ndarray:
    """What detections, the most confident first, find: 1 an object that none before found, -1 one that is not wanted,
    0 nothing; (detections, thresholds).

    Args:
        overlaps: IoU (detections, objects)
        wanted: (objects,), by default all; one that is not is found only by what finds none that is.
    """
    hits = np.zeros((len(overlaps), len(thresholds)), np.int8)
    wanted = np.ones(overlaps.shape[1], bool) if wanted is None else wanted
    if not overlaps.shape[1]:
        return hits
    free = np.ones((len(thresholds), overlaps.shape[1]), bool)
    each = np.arange(len(thresholds))
    for index, overlap in enumerate(overlaps):
        close = np.where(free & (overlap >= thresholds[:, None]), overlap + wanted, -1.0)  # those wanted come first
        best = close.argmax(1)
        found = close[each, best] >= 0
        hits[index] = np.where(found, np.where(wanted[best], 1, -1), 0)
        free[each, best] &= ~found
    return hits


def _average_precisions(detections: list[dict], objects: list[dict], area: tuple[float, float]) -> np.ndarray:
    """(classes, thresholds), of the classes that objects of this area have"""
    wanted = [_within(truth["boxes"], area) for truth in objects]
    labels = np.concatenate([truth["labels"][rows] for truth, rows in zip(objects, wanted, strict=True)])
    classes, counts = np.unique(labels, return_counts=True)
    found = {label: [] for label in classes}
    for seen, truth, asked in zip(detections, objects, wanted, strict=True):
        sized = _within(seen["boxes"], area)
        for label in np.intersect1d(classes, seen["labels"]):
            rows = np.flatnonzero(seen["labels"] == label)[:MOST_DETECTIONS]
            there = truth["labels"] == label
            hits = match(overlaps_of(seen["boxes"][rows], truth["boxes"][there]), THRESHOLDS, asked[there])
            hits[(hits == 0) & ~sized[rows, None]] = -1
            found[label].append((seen["scores"][rows], hits))
    averages = [_average_precision(found[label], count) for label, count in zip(classes, counts, strict=True)]
    return np.array(averages).reshape(-1, len(THRESHOLDS))


def _within(boxes: np.ndarray, area: tuple[float, float]) -> np.ndarray:
    sizes = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return (area[0] <= sizes) & (sizes <= area[1])


def _average_precision(found: list[tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    """Scores and hits (see `match`) in the images, of a class that has `count` objects -> (thresholds,)"""
    if not found:
        return np.zeros(len(THRESHOLDS))
    scores, hits = (np.concatenate(part) for part in zip(*found, strict=True))
    hits = hits[np.argsort(-scores, kind="stable")]
    right, wrong = (hits == 1).cumsum(0), (hits == 0).cumsum(0)
    recall = right / count
    precision = right / np.maximum(right + wrong, 1)
    best_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    with_end = np.concatenate([best_from_here, np.zeros((1, hits.shape[1]))])  # recalls never reached count 0
    places = [np.searchsorted(recall[:, t], RECALLS) for t in range(hits.shape[1])]
    return np.array([with_end[place, t].mean() for t, place in enumerate(places)])


def _most_confident(seen: dict, truth: dict) -> np.ndarray:
    """(objects, 2): whether each was found, and the best overlap with it"""
    count = len(truth["labels"])
    overlaps = overlaps_of(seen["boxes"][:count], truth["boxes"])
    same = seen["labels"][:count, None] == truth["labels"]
    hits = (match(np.where(same, overlaps, 0.0), THRESHOLDS[:1]) == 1).sum()
    found = np.arange(count) < hits  # how many is all that is asked
    return np.stack([found, overlaps.max(0, initial=0.0)], 1)


def _by_confidence(prediction: dict) -> dict[str, np.ndarray]:
    arrays = _arrays(prediction, ("scores", "labels"))
    order = np.argsort(-arrays["scores"], kind="stable")
    return {name: value[order] for name, value in arrays.items()}


def _arrays(record: dict, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    boxes = np.asarray(record["boxes"], np.float64).reshape(-1, 4)
    arrays = {name: np.asarray(record[name]) for name in names}
    for name, value in arrays.items():
        if value.shape != (len(boxes),):
            raise ValueError(f"{name} must have shape ({len(boxes)},), one per box, got {value.shape}.")
    arrays["labels"] = arrays["labels"].astype(np.int64)
    return {**arrays, "boxes": boxes}
