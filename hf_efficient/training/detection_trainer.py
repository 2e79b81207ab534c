"""Training of object detectors, whose evaluation gathers detections rather than the logits of every query."""

import torch
from PIL import ImageOps
from PIL.Image import Image
from torch import Tensor
from transformers.image_transforms import center_to_corners_format

from ..visualization import contact_sheet, draw_boxes
from .metrics.detection import detection_scores, read_queries
from .trainer import EfficientTrainer

SHOWN, SIDE = 4, 272  # images in the picture of predictions, and their size in it
MOST_CLASSES = 30  # that its legend names
PADDING = -100  # the class of rows that are there to make images equally long; transformers' padding is the same


class DetectionTrainer(EfficientTrainer):
    """For models that return `logits` (B, Q, classes + 1) and `pred_boxes` (B, Q, 4), as those of transformers do."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, compute_metrics=score_detections, **kwargs)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs)
        loss = outputs.loss.detach()
        if prediction_loss_only:
            return loss, None, None
        labels = inputs["labels"]
        return loss, pack_detections(outputs.logits, outputs.pred_boxes, scales(labels)), pack_objects(labels)

    @torch.no_grad()
    def pictures(self) -> dict[str, Image]:
        """Images of the evaluation, their objects, and as many detections, the most confident."""
        data, rows = self.eval_dataset, []
        names = data.images.class_names
        batch = data.__getitems__(list(range(0, len(data), -(-len(data) // SHOWN))))
        self.model.eval()
        outputs = self.model(pixel_values=batch["pixel_values"].to(self.args.device))
        scores, classes = outputs.logits.float().softmax(-1)[..., :-1].max(-1)  # (B, Q)
        for i, (picture, truth) in enumerate(zip(data.pictures(batch["pixel_values"]), batch["labels"], strict=True)):
            best = scores[i].topk(min(len(truth["boxes"]), scores.shape[1])).indices
            picture = ImageOps.contain(picture, (SIDE, SIDE))
            real = draw_boxes(picture, truth["boxes"], truth["class_labels"].tolist(), names)
            seen = draw_boxes(picture, outputs.pred_boxes[i][best], classes[i][best].tolist(), names)
            rows.append(("", [picture, real, seen]))
        legend = names if len(names) <= MOST_CLASSES else ()
        sheet = contact_sheet(rows, ["image", "truth", "prediction"], SIDE, legend)
        return {"predictions": sheet, "example": data.pictures(batch["pixel_values"][:1])[0]}


def scales(labels: list[dict[str, Tensor]]) -> Tensor:
    """(B, 4): width, height, width, height of the images in their files, in pixels; 1 where that is not known"""
    sizes = [label.get("orig_size", torch.ones(2)).to(label["boxes"]) for label in labels]
    return torch.stack([size.flip(0).repeat(2) for size in sizes])


def pack_detections(logits: Tensor, boxes: Tensor, scales: Tensor) -> Tensor:
    """(B, Q, 6): score, class, box as corners, in pixels"""
    found = read_queries(logits.float(), boxes.float() * scales[:, None])
    rows = [torch.column_stack([image["scores"], image["labels"], image["boxes"]]) for image in found]
    return torch.stack(rows)


def pack_objects(labels: list[dict[str, Tensor]]) -> Tensor:
    """(B, most objects, 5): class, box as centre and size, in pixels; rows of images with fewer are PADDING."""
    boxes = [label["boxes"] * scale for label, scale in zip(labels, scales(labels), strict=True)]
    rows = [torch.cat([x["class_labels"][:, None].to(box), box], 1) for x, box in zip(labels, boxes, strict=True)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)


def score_detections(prediction) -> dict[str, float]:
    """What a Trainer calls as `compute_metrics`."""
    detections, objects = prediction
    predictions = [{"scores": x[:, 0], "labels": x[:, 1].astype(int), "boxes": x[:, 2:]} for x in detections]
    real = (x[x[:, 0] >= 0] for x in objects)
    references = [{"labels": x[:, 0].astype(int), "boxes": center_to_corners_format(x[:, 1:])} for x in real]
    return detection_scores(predictions, references)
