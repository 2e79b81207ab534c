"""IoU and average precision, computed by hand."""

import importlib

import numpy as np
import pytest
import torch

from hf_efficient.training.metrics import detection_scores, read_queries
from hf_efficient.training.metrics.detection import match, overlaps_of

KNOWN = {"map": 0.18906068, "map_50": 0.41495426, "map_small": 0.0, "map_medium": 0.04600601, "map_large": 0.36697370}
BOX, FAR = [0, 0, 10, 10], [50, 50, 60, 60]


def seen(*detections) -> dict:
    """(score, label, box) ..."""
    scores, labels, boxes = zip(*detections, strict=True) if detections else ([], [], [])
    return {"scores": list(scores), "labels": list(labels), "boxes": list(boxes)}


def truth(*objects) -> dict:
    """(label, box) ..."""
    labels, boxes = zip(*objects, strict=True) if objects else ([], [])
    return {"labels": list(labels), "boxes": list(boxes)}


def overlapping(iou: float) -> list[float]:
    """A box inside BOX with this IoU"""
    return [0, 0, 10, 10 * iou]


def test_iou():
    a = np.array([BOX, [5, 5, 15, 15], FAR, [3, 3, 3, 3]], float)
    expected = [[1, 25 / 175, 0, 0], [25 / 175, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert overlaps_of(a, a) == pytest.approx(np.array(expected))


def test_perfect_and_hopeless():
    objects = [truth((0, BOX), (1, FAR)), truth((1, BOX))]
    perfect = detection_scores([seen((0.9, 0, BOX), (0.8, 1, FAR)), seen((0.7, 1, BOX))], objects)
    assert perfect == {"map": 1, "map_50": 1, "map_small": 1, "found_50": 1, "iou": 1}
    nothing = detection_scores([seen(), seen()], objects)
    assert nothing == {"map": 0, "map_50": 0, "map_small": 0, "found_50": 0, "iou": 0}


def test_the_wrong_class_finds_nothing_but_overlaps():
    scores = detection_scores([seen((0.9, 1, BOX))], [truth((0, BOX))])
    assert scores == {"map": 0, "map_50": 0, "map_small": 0, "found_50": 0, "iou": 1}


@pytest.mark.parametrize(("iou", "thresholds"), [(0.49, 0), (0.5, 1), (0.72, 5), (0.96, 10)])
def test_map_counts_thresholds(iou, thresholds):
    scores = detection_scores([seen((0.9, 0, overlapping(iou)))], [truth((0, BOX))])
    assert scores["map"] == pytest.approx(thresholds / 10) and scores["map_50"] == (iou >= 0.5)
    assert scores["found_50"] == (iou >= 0.5) and scores["iou"] == pytest.approx(iou)


def test_average_precision_by_hand():
    """Two objects; by confidence a hit, a false alarm, a hit: precision 1 up to recall 1/2, then 2/3.

    Of the 101 recalls, 0.00 to 0.50 are reached by the first hit.
    """
    predictions = [seen((0.9, 0, BOX), (0.8, 0, FAR)), seen((0.7, 0, BOX))]
    scores = detection_scores(predictions, [truth((0, BOX)), truth((0, BOX))])
    assert scores["map_50"] == pytest.approx((51 * 1 + 50 * 2 / 3) / 101)


def test_false_alarms_below_the_last_hit_cost_nothing_and_above_do():
    low = detection_scores([seen((0.9, 0, BOX), (0.1, 0, FAR))], [truth((0, BOX))])
    high = detection_scores([seen((0.9, 0, FAR), (0.1, 0, BOX))], [truth((0, BOX))])
    assert low["map_50"] == 1 and high["map_50"] == pytest.approx(0.5)


def test_an_object_is_found_once():
    scores = detection_scores([seen((0.9, 0, BOX), (0.8, 0, BOX))], [truth((0, BOX), (0, FAR))])
    assert scores["map_50"] == pytest.approx(51 / 101) and scores["found_50"] == 0.5


def test_detections_take_the_best_object_that_is_left():
    overlaps = np.array([[0.6, 0.9], [0.7, 0.8], [0.9, 0.9]])
    assert match(overlaps, np.array([0.5, 0.75])).tolist() == [[1, 1], [1, 0], [0, 1]]


def test_classes_without_objects_do_not_count():
    predictions = [seen((0.9, 0, BOX), (0.95, 7, FAR)), seen((0.9, 3, FAR))]
    scores = detection_scores(predictions, [truth((0, BOX)), truth()])
    assert scores["map_50"] == 1


def test_map_is_the_mean_over_classes():
    predictions = [seen((0.9, 0, BOX)), seen((0.9, 0, FAR))]
    assert detection_scores(predictions, [truth((0, BOX)), truth((1, BOX))])["map_50"] == 0.5


def test_only_the_most_confident_are_looked_at_for_found():
    scores = detection_scores([seen((0.9, 1, FAR), (0.8, 0, BOX))], [truth((0, BOX))])
    assert scores["found_50"] == 0 and scores["iou"] == 0 and scores["map_50"] == 1


def test_queries():
    logits = torch.full((1, 2, 4), -10.0)  # 3 classes and "no object"
    logits[0, 0, 2], logits[0, 1, 3], logits[0, 1, 1] = 10, 5, 3
    boxes = torch.tensor([[[0.5, 0.5, 1, 1], [0.2, 0.2, 0.2, 0.2]]])
    (image,) = read_queries(logits, boxes)
    assert image["labels"].tolist() == [2, 1]
    assert image["scores"] == pytest.approx([1, 1 / (1 + np.e**2)], abs=1e-4)
    assert image["boxes"].numpy() == pytest.approx(np.array([[0, 0, 1, 1], [0.1, 0.1, 0.3, 0.3]]))


def scenes(images: int, objects: int, side: float, seed: int) -> tuple[list[dict], list[dict]]:
    """Detections that are more or less right, of objects up to `side` pixels; the last image has none."""
    random = np.random.default_rng(seed)
    predictions, references = [], []
    for index in range(images):
        corners = random.random((objects, 4)) * 300
        corners[:, 2:] = corners[:, :2] + random.random((objects, 2)) * side + 3
        labels = random.integers(0, 4, objects)
        there = random.random(objects) < (index < images - 1)
        references.append({"labels": labels[there], "boxes": corners[there]})
        moved = corners + random.normal(0, side / 20, (objects, 4))
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 0.5)
        guessed = np.where(random.random(objects) < 0.8, labels, random.integers(0, 4, objects))
        predictions.append({"scores": random.random(objects), "labels": guessed, "boxes": moved})
    return predictions, references


@pytest.mark.parametrize(("images", "objects", "side"), [(30, 6, 60), (20, 15, 250), (2, 500, 40)])
def test_scores_are_pycocotools(images, objects, side):
    COCO = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed").COCO
    COCOeval = importlib.import_module("pycocotools.cocoeval").COCOeval
    predictions, references = scenes(images, objects, side, seed=0)

    def rows(records: list[dict]) -> list[dict]:
        found = []
        for image, record in enumerate(records):
            for i, (label, box) in enumerate(zip(record["labels"], record["boxes"], strict=True)):
                x, y, width, height = box[0], box[1], box[2] - box[0], box[3] - box[1]
                row = {"id": len(found) + 1, "image_id": image, "category_id": int(label), "area": width * height}
                row |= {"bbox": [x, y, width, height], "iscrowd": 0}
                found.append(row | ({"score": record["scores"][i]} if "scores" in record else {}))
        return found

    coco = COCO()
    coco.dataset = {
        "images": [{"id": image} for image in range(images)],
        "annotations": rows(references),
        "categories": [{"id": label} for label in range(4)],
    }
    coco.createIndex()
    evaluation = COCOeval(coco, coco.loadRes(rows(predictions)), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    names = ("map", "map_50", None, "map_small", "map_medium", "map_large")
    expected = {name: x for name, x in zip(names, evaluation.stats, strict=False) if name and x >= 0}
    found = detection_scores(predictions, references)
    assert {name: found.get(name) for name in expected} == pytest.approx(expected, abs=1e-9)
    assert {name for name in found if name.startswith("map")} == set(expected)


def test_scores_without_pycocotools_beside():
    """What pycocotools 2.0.11 gave for the same boxes"""
    found = detection_scores(*scenes(20, 15, 250, seed=0))
    assert {name: found[name] for name in KNOWN} == pytest.approx(KNOWN, abs=1e-6)


def test_bad_input():
    with pytest.raises(ValueError, match="for 1 images and references for 2"):
        detection_scores([seen()], [truth(), truth()])
    with pytest.raises(ValueError, match="references has no objects"):
        detection_scores([seen()], [truth()])
    with pytest.raises(ValueError, match=r"scores must have shape \(1,\), one per box, got \(2,\)"):
        detection_scores([{"scores": [0.1, 0.2], "labels": [0], "boxes": [BOX]}], [truth((0, BOX))])
