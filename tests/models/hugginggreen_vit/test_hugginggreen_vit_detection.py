"""HuggingGreenViTForObjectDetection: one object and several, faults in labels, mosaics, the pipeline."""

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from transformers import (
    AutoModelForObjectDetection,
    DetrImageProcessorPil,
    YolosImageProcessorPil,
    pipeline,
)
from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss

from hf_efficient import HuggingGreenViTConfig, HuggingGreenViTForObjectDetection
from hf_efficient.data.mosaics import mosaic
from hf_efficient.data.objects import Objects

SIZES = {
    "image_size": 32,
    "patch_size": 4,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "num_labels": 10,
}


def detector(**fields):
    torch.manual_seed(0)
    return HuggingGreenViTForObjectDetection(HuggingGreenViTConfig(**{**SIZES, **fields}))


def scenes(count: int, size: int = 32) -> tuple[torch.Tensor, list[dict]]:
    """Digits of 8 x 8 pixels somewhere on black, (count, 3, size, size), with their boxes."""
    digits, generator = load_digits(), torch.Generator().manual_seed(0)
    images, labels = torch.zeros(count, 3, size, size), []
    for i in range(count):
        y, x = torch.randint(0, size - 7, (2,), generator=generator).tolist()
        images[i, :, y : y + 8, x : x + 8] = torch.tensor(digits.images[i] / 16)
        box = [(x + 4) / size, (y + 4) / size, 8 / size, 8 / size]
        labels.append({"class_labels": torch.tensor([int(digits.target[i])]), "boxes": torch.tensor([box])})
    return images * 2 - 1, labels


def as_objects(images: torch.Tensor, labels: list[dict]) -> tuple[torch.Tensor, Objects]:
    classes, boxes = (torch.cat([label[key] for label in labels]) for key in ("class_labels", "boxes"))
    return images, Objects.one_each(classes, boxes, images.shape[2:])


def train(model, images, labels, steps):
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=2e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(images, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def found(model, images, labels) -> float:
    """The share of objects that a query has with the right class and IoU ≥ .5."""
    output, hits, objects = model(images), 0, 0
    for logits, boxes, label in zip(output.logits, output.pred_boxes, labels, strict=True):
        classes = logits.argmax(-1)
        for wanted, box in zip(label["class_labels"], label["boxes"], strict=True):
            hits += any(
                c == wanted and iou(b.tolist(), box.tolist()) >= 0.5 for c, b in zip(classes, boxes, strict=True)
            )
            objects += 1
    return hits / objects


def iou(a, b) -> float:
    (ax, ay, aw, ah), (bx, by, bw, bh) = a, b
    width = min(ax + aw / 2, bx + bw / 2) - max(ax - aw / 2, bx - bw / 2)
    height = min(ay + ah / 2, by + bh / 2) - max(ay - ah / 2, by - bh / 2)
    common = max(width, 0) * max(height, 0)
    return common / (aw * ah + bw * bh - common)


@pytest.mark.parametrize("queries", [1, 16])
def test_outputs_have_the_layout_of_transformers(queries):
    model = detector(num_queries=queries, top_k=40, select_at_eval=True).eval()
    images, labels = scenes(3)
    output = model(images, labels=labels)
    assert output.logits.shape == (3, queries, 11) and output.pred_boxes.shape == (3, queries, 4)
    assert ((output.pred_boxes > 0) & (output.pred_boxes < 1)).all()
    assert output.last_hidden_state.shape == (3, 41, 48) and output.patch_indices.shape == (3, 40)
    loss, parts, _ = ForObjectDetectionLoss(
        output.logits, labels, output.logits.device, output.pred_boxes, model.config
    )
    torch.testing.assert_close(output.loss, loss)
    assert parts.keys() == output.loss_dict.keys() == {"loss_ce", "loss_bbox", "loss_giou", "cardinality_error"}
    weighted = parts["loss_ce"] + 5 * parts["loss_bbox"] + 2 * parts["loss_giou"]
    torch.testing.assert_close(output.loss, weighted)


def test_one_object_is_learned():
    images, labels = scenes(6)
    model = train(detector(num_queries=1), images, labels, 120)
    assert found(model, images, labels) == 1


def test_several_objects_are_learned_from_mosaics():
    images, objects = mosaic(*as_objects(*scenes(16, size=16)))
    labels = objects.as_labels()
    assert images.shape == (4, 3, 32, 32)
    model = train(detector(num_queries=8, prob=0.3), images, labels, 150)
    assert found(model, images, labels) >= 0.9


def test_mosaic_puts_boxes_where_the_objects_are():
    images, labels = scenes(8, size=16)
    _, objects = as_objects(images, labels)
    squares, joined = mosaic(images, objects)
    joined = joined.as_labels()
    assert squares.shape == (2, 3, 32, 32) and [len(x["boxes"]) for x in joined] == [4, 4]
    assert torch.equal(squares[1, :, :16, 16:], images[5]) and torch.equal(squares[1, :, 16:, :16], images[6])
    for square, label, first in zip(squares, joined, (0, 4), strict=True):
        assert label["class_labels"].tolist() == [labels[first + i]["class_labels"].item() for i in range(4)]
        for i, box in enumerate(label["boxes"]):
            cx, cy, w, h = (box * 32).tolist()
            assert (w, h) == (8, 8)
            crop = square[:, int(cy - 4) : int(cy + 4), int(cx - 4) : int(cx + 4)]
            assert torch.equal(crop, torch.tensor(load_digits().images[first + i] / 8 - 1).expand(3, 8, 8).float())
    with pytest.raises(ValueError, match=r"images must be \(4·B, C, H, W\)"):
        mosaic(images[:5], objects)
    with pytest.raises(ValueError, match="objects of 7 images, and 8 images"):
        mosaic(images, objects[torch.arange(7)])


def test_images_without_objects():
    model, (images, labels) = detector(num_queries=4).train(), scenes(3)
    nothing = {"class_labels": torch.zeros(0, dtype=torch.long), "boxes": torch.zeros(0, 4)}
    for batch in ([labels[0], nothing, labels[2]], [nothing] * 3):
        loss = model(images, labels=batch).loss
        loss.backward()
        assert torch.isfinite(loss)


def test_a_frozen_backbone_has_no_gradients():
    model, (images, labels) = detector(num_queries=2, hidden_dropout_prob=0.2).train(), scenes(3)
    model.freeze_backbone()
    output = model(images, labels=labels)
    assert not output.last_hidden_state.requires_grad
    output.loss.backward()
    assert all(p.grad is None for p in model.vit.parameters())
    heads = [p for name, p in model.named_parameters() if not name.startswith("vit.")]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in heads)


def test_bfloat16_has_a_loss():
    model, (images, labels) = detector(num_queries=2).to(torch.bfloat16), scenes(2)
    loss = model(images.bfloat16(), labels=labels).loss
    loss.backward()
    assert torch.isfinite(loss)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda x: [{"class_labels": x[0]["class_labels"], "bbox": x[0]["boxes"]}, x[1]],
            r"labels\[0\] lacks boxes; it has",
        ),
        (lambda x: [x[0], {}], r"labels\[1\] lacks boxes, class_labels"),
        (lambda x: x[:1], "labels must be a list of 2 dicts"),
        (lambda x: torch.zeros(2), "labels must be a list of 2 dicts"),
        (lambda x: [x[0], {**x[1], "class_labels": torch.tensor([10])}], r"holds 10, but the model has labels 0 to 9"),
        (lambda x: [x[0], {**x[1], "class_labels": torch.tensor([-1])}], r"holds -1"),
        (lambda x: [x[0], {**x[1], "class_labels": torch.tensor([1.0])}], "must be a list of integers"),
        (lambda x: [x[0], {**x[1], "boxes": x[1]["boxes"] * 32}], r"in \[0, 1\]"),
        (lambda x: [x[0], {**x[1], "boxes": x[1]["boxes"] * torch.nan}], r"in \[0, 1\]"),
        (lambda x: [x[0], {**x[1], "boxes": x[1]["boxes"].expand(2, 4)}], r"must be \(1, 4\), one box for each"),
    ],
)
def test_bad_labels_are_named(change, message):
    images, labels = scenes(2)
    with pytest.raises(ValueError, match=message):
        detector()(images, labels=change(labels))


def test_missing_images_are_named():
    with pytest.raises(ValueError, match="pixel_values is missing"):
        detector()(labels=scenes(2)[1])


def test_padding_is_refused():
    mask = torch.ones(2, 32, 32)
    detector()(scenes(2)[0], pixel_mask=mask)
    mask[1, 20:] = 0
    with pytest.raises(ValueError, match="pixel_mask marks padding"):
        detector()(scenes(2)[0], pixel_mask=mask)


@pytest.mark.parametrize("processor", [YolosImageProcessorPil, DetrImageProcessorPil])
def test_pipeline_from_a_saved_directory(processor, tmp_path):
    images, labels = scenes(4)
    model = train(detector(num_queries=1, id2label=dict(enumerate("abcdefghij"))), images, labels, 100)
    model.save_pretrained(tmp_path)
    kwargs = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    processor(**kwargs).save_pretrained(tmp_path)
    assert type(AutoModelForObjectDetection.from_pretrained(tmp_path)) is HuggingGreenViTForObjectDetection
    picture = Image.fromarray(((images[0] / 2 + 0.5) * 255).round().byte().permute(1, 2, 0).numpy())
    wide = Image.fromarray(np.asarray(picture).repeat(2, 1))  # 64 x 32: boxes come back in its pixels
    (narrow_found,), (wide_found,) = (pipeline("object-detection", model=tmp_path)(x) for x in (picture, wide))
    assert narrow_found["label"] == wide_found["label"] == "abcdefghij"[labels[0]["class_labels"]]
    cx, cy, w, h = (labels[0]["boxes"][0] * 32).tolist()
    expected = {"xmin": cx - 4, "ymin": cy - 4, "xmax": cx + 4, "ymax": cy + 4}
    assert narrow_found["box"] == pytest.approx(expected, abs=3)
    assert wide_found["box"]["xmax"] == pytest.approx(2 * (cx + 4), abs=6)
