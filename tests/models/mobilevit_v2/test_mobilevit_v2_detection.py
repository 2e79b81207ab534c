import pytest
import torch
import torch.nn.functional as F
from mobilevit_v2_cases import stirred, tiny
from transformers.image_transforms import center_to_corners_format

from hf_efficient.models.mobilevit_v2 import detection
from hf_efficient.models.mobilevit_v2.modeling_mobilevit_v2 import MobileViTv2ForObjectDetection

VARIANCES = (0.1, 0.2)


def target(classes, boxes):
    return {"class_labels": torch.tensor(classes), "boxes": torch.tensor(boxes).view(-1, 4)}


def iou(a, b) -> float:
    """Of two boxes given by corners."""
    width, height = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1))
    shared = max(width, 0) * max(height, 0)
    return shared / (sum((x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)) - shared)


# Anchors and boxes.


def test_anchors_of_the_paper():
    sizes = [(20, 20), (10, 10), (5, 5), (3, 3), (2, 2), (1, 1)]  # 320 px
    anchors = detection.make_anchors(tiny(), sizes)
    assert anchors.shape == (3232, 4) and anchors.min() >= 0 and anchors.max() <= 1
    first, second, root = 0.1, 0.1 + 0.95 / 6, 2**0.5
    expected = [
        [first, first],
        [(first * second) ** 0.5] * 2,
        [first * root, first / root],
        [first / root, first * root],
    ]
    torch.testing.assert_close(anchors[:4, 2:], torch.tensor(expected))
    torch.testing.assert_close(anchors[6, :2], torch.tensor([1.5 / 20, 0.5 / 20]))  # the next cell to the right
    torch.testing.assert_close(anchors[20 * 6, :2], torch.tensor([0.5 / 20, 1.5 / 20]))  # the next row
    torch.testing.assert_close(anchors[-1, :2], torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize("size", [(320, 320), (64, 96)])
def test_every_anchor_has_a_prediction(size):
    model = MobileViTv2ForObjectDetection(tiny()).train()
    output = model(torch.randn(2, 3, *size))
    count = output.pred_boxes.shape[1]
    assert count == (3232 if size == (320, 320) else 6 * (24 + 8 + 2 + 1 + 1) + 4)
    assert output.logits.shape == (2, count, 6)


def test_decoding_undoes_encoding():
    anchors = detection.make_anchors(tiny(), [(2, 2)] * 6)
    boxes = torch.rand_like(anchors) * 0.5 + 0.2
    offsets = detection.encode_boxes(boxes, anchors, VARIANCES)
    torch.testing.assert_close(detection.decode_boxes(offsets, anchors, VARIANCES), boxes)
    centre, side = boxes[5, 0] - anchors[5, 0], boxes[5, 3] / anchors[5, 3]
    torch.testing.assert_close(offsets[5, 0], centre / anchors[5, 2] / 0.1)
    torch.testing.assert_close(offsets[5, 3], side.log() / 0.2)
    assert torch.isfinite(detection.decode_boxes(torch.full_like(anchors, 1e6), anchors, VARIANCES)).all()


# Matching and loss.

ANCHORS = torch.tensor(
    [[0.2, 0.2, 0.2, 0.2], [0.3, 0.2, 0.2, 0.2], [0.7, 0.7, 0.2, 0.2], [0.7, 0.7, 0.6, 0.6], [0.9, 0.1, 0.1, 0.1]]
)


def test_matching():
    boxes = torch.tensor([[0.2, 0.2, 0.2, 0.25], [0.8, 0.8, 0.1, 0.1]])
    # Box 0 overlaps anchor 0 by 0.04 / 0.05 and anchor 1 by 0.02 / 0.07, box 1 anchor 2 by 0.0025 / 0.0475.
    assert detection.match_anchors(boxes, ANCHORS, 0.5).tolist() == [0, -1, 1, -1, -1]
    assert detection.match_anchors(boxes, ANCHORS, 0.2).tolist() == [0, 0, 1, -1, -1]
    assert detection.match_anchors(torch.zeros(0, 4), ANCHORS, 0.5).tolist() == [-1] * 5


def test_two_boxes_share_no_anchor():
    boxes = torch.tensor([[0.2, 0.2, 0.2, 0.2], [0.2, 0.2, 0.2, 0.22]])
    assert detection.match_anchors(boxes, ANCHORS, 0.5).tolist() == [1, -1, -1, -1, -1]


def test_loss_by_hand():
    config = tiny(num_labels=2, ssd_negative_ratio=1)
    offsets, logits = torch.randn(2, 5, 4), torch.randn(2, 5, 3)
    labels = [target([1, 0], [[0.2, 0.2, 0.2, 0.25], [0.8, 0.8, 0.1, 0.1]]), target([], [])]
    losses = detection.ssd_loss(offsets, logits, ANCHORS, labels, config)
    entropy = F.cross_entropy(logits[0], torch.tensor([1, 2, 0, 2, 2]), reduction="none")
    hardest = entropy[[1, 3, 4]].sort(descending=True).values[:2].sum()  # as many as matched; none in the other image
    torch.testing.assert_close(losses["loss_ce"], (entropy[0] + entropy[2] + hardest) / 2)
    wanted = detection.encode_boxes(labels[0]["boxes"], ANCHORS[[0, 2]], VARIANCES)
    torch.testing.assert_close(losses["loss_bbox"], F.smooth_l1_loss(offsets[0, [0, 2]], wanted, reduction="sum") / 2)
    quarter = detection.ssd_loss(offsets, logits, ANCHORS, labels, config, num_items_in_batch=8)
    torch.testing.assert_close(quarter["loss_ce"], losses["loss_ce"] / 4)


def test_images_without_objects_have_a_loss():
    model = MobileViTv2ForObjectDetection(tiny()).train()
    output = model(torch.randn(2, 3, 64, 64), labels=[target([], [])] * 2)
    assert output.loss == 0
    output.loss.backward()


def test_learns_to_find_a_box():
    model = MobileViTv2ForObjectDetection(tiny(ssd_channels=[32] * 6)).train()
    pixel_values = torch.zeros(2, 3, 64, 64)
    pixel_values[0, :, 16:48, 8:40] = 1
    pixel_values[1, 0, 8:40, 24:56] = 1
    labels = [target([1], [[0.375, 0.5, 0.5, 0.5]]), target([3], [[0.625, 0.375, 0.5, 0.5]])]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        loss = model(pixel_values, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    output = model(pixel_values)  # with this batch's statistics: the running ones need longer
    logits, boxes = detection.detect(output.logits, output.pred_boxes, model.config)
    for image, label in enumerate(labels):
        scores = logits[image, 0].softmax(-1)[:-1]
        assert scores.argmax() == label["class_labels"] and scores.max() > 0.5
        assert iou(*center_to_corners_format(torch.stack([boxes[image, 0], label["boxes"][0]])).tolist()) > 0.5


# Non-maximum suppression.


def slow_suppression(boxes, valid, threshold) -> list[bool]:
    keep = []
    for i, box in enumerate(boxes.tolist()):
        rivals = (other for other, kept in zip(boxes.tolist(), keep, strict=False) if kept)
        keep.append(bool(valid[i]) and all(iou(box, other) <= threshold for other in rivals))
    return keep


@pytest.mark.parametrize("threshold", [0.1, 0.5])
def test_suppression_is_the_loop(threshold):
    corners = torch.rand(3, 60, 2, dtype=torch.float64) * 0.6
    boxes = torch.cat([corners, corners + 0.05 + torch.rand_like(corners) * 0.35], -1)
    valid = torch.rand(3, 60) < 0.9
    keep = detection.greedy_suppression(boxes, valid, threshold)
    assert keep.tolist() == [slow_suppression(b, v, threshold) for b, v in zip(boxes, valid, strict=True)]
    assert 0 < keep.sum() < valid.sum()


def test_a_suppressed_box_suppresses_nothing():
    left = torch.arange(0, 8) * 0.4  # each overlaps the next by 0.6 / 1.4, and no other
    boxes = torch.stack([left, torch.zeros(8), left + 1, torch.ones(8)], -1)
    keep = detection.greedy_suppression(boxes[None], torch.ones(1, 8, dtype=torch.bool), 0.4)
    assert keep.tolist() == [[True, False] * 4]


def slow_detections(logits, boxes, config):
    """(score, class, box by corners), best first."""
    found = []
    probabilities = logits.softmax(-1)
    for c in range(config.num_labels):
        order = probabilities[:, c].argsort(descending=True)[: config.ssd_top_k]
        order = [i for i in order.tolist() if probabilities[i, c] > config.ssd_score_threshold]
        corners = center_to_corners_format(boxes)[order].clamp(0, 1)
        keep = slow_suppression(corners, torch.ones(len(order)), config.ssd_nms_threshold)
        found += [
            (probabilities[i, c].item(), c, box.tolist())
            for i, box, kept in zip(order, corners, keep, strict=True)
            if kept
        ]
    return sorted(found, reverse=True)[: config.ssd_max_detections]


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"ssd_top_k": 7},
        {"ssd_max_detections": 5},
        {"ssd_score_threshold": 0.4},
        {"ssd_max_detections": 600, "ssd_top_k": 3},
        {"ssd_score_threshold": 0.99},
    ],
)
def test_detections_are_the_loop(limits):
    config = tiny(num_labels=3, **limits)
    logits = torch.randn(2, 80, 4) * 2
    boxes = torch.cat([torch.rand(2, 80, 2), torch.rand(2, 80, 2) * 0.4 + 0.1], -1)
    rows, found = detection.detect(logits, boxes, config)
    assert rows.shape == (2, config.ssd_max_detections, 4) and found.shape == (2, config.ssd_max_detections, 4)
    assert found.min() >= 0 and found.max() <= 1
    for image in range(2):
        expected = slow_detections(logits[image], boxes[image], config)
        scores, labels = rows[image].softmax(-1)[:, :-1].max(-1)
        torch.testing.assert_close(scores[: len(expected)], torch.tensor([x[0] for x in expected]))
        assert labels[: len(expected)].tolist() == [x[1] for x in expected]
        corners = center_to_corners_format(found[image])[: len(expected)]
        torch.testing.assert_close(corners, torch.tensor([x[2] for x in expected]).view(-1, 4))
        assert (scores[len(expected) :] == 0).all()


def test_evaluation_suppresses_and_training_does_not():
    model, pixel_values = stirred(MobileViTv2ForObjectDetection(tiny())), torch.randn(2, 3, 64, 64)
    assert model(pixel_values).logits.shape == (2, 200, 6)
    labels = [target([1], [[0.5, 0.5, 0.3, 0.2]])] * 2
    loss = model(pixel_values, labels=labels).loss
    model.config.ssd_suppression = False
    output = model(pixel_values, labels=labels)
    assert output.logits.shape == (2, 142, 6) and torch.equal(output.loss, loss)
    torch.testing.assert_close(output.loss, sum(output.loss_dict.values()))


def test_a_processor_of_transformers_reads_the_output():
    from transformers import YolosImageProcessorPil

    model = stirred(MobileViTv2ForObjectDetection(tiny(ssd_score_threshold=0.3)))
    output = model(torch.randn(2, 3, 64, 64))
    process = YolosImageProcessorPil().post_process_object_detection
    results = process(output, threshold=0.4, target_sizes=[(100, 200), (50, 50)])
    scores = output.logits.softmax(-1)[..., :-1]
    for result, score in zip(results, scores, strict=True):
        assert len(result["scores"]) == (score.max(-1).values > 0.4).sum() > 0
        for label in range(5):
            mine = result["boxes"][result["labels"] == label].tolist()
            assert all(iou(a, b) <= 0.5 + 1e-4 for i, a in enumerate(mine) for b in mine[:i])
    assert all(len(x["scores"]) < 200 for x in process(output, threshold=0.0))


# Bad input.


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([target([5], [0.5, 0.5, 0.1, 0.1])], "labels holds 5"),
        ([target([1], [0.5, 0.5, 0.0, 0.1])], "boxes must have a width and a height above 0"),
        ([target([1, 2], [0.5, 0.5, 0.1, 0.1])], r"boxes must be \(2, 4\)"),
        ([{"boxes": torch.zeros(0, 4)}], "class_labels and boxes"),
        ([target([], [])] * 3, "labels holds 3 images, but pixel_values 1"),
    ],
)
def test_wrong_labels_are_named(labels, message):
    with pytest.raises(ValueError, match=message):
        MobileViTv2ForObjectDetection(tiny()).eval()(torch.randn(1, 3, 64, 64), labels=labels)


def test_padded_images_are_refused():
    model, pixel_values = stirred(MobileViTv2ForObjectDetection(tiny())), torch.randn(1, 3, 64, 64)
    mask = torch.ones(1, 64, 64, dtype=torch.long)
    model(pixel_values, pixel_mask=mask)
    mask[:, 32:] = 0
    with pytest.raises(ValueError, match="pixel_mask: padded images"):
        model(pixel_values, pixel_mask=mask)


def test_other_output_strides_are_refused():
    with pytest.raises(ValueError, match="output_stride=16: object detection needs 32"):
        MobileViTv2ForObjectDetection(tiny(output_stride=16))
