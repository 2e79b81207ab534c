"""Training of semantic segmentation, whose evaluation counts pixels rather than gather logits of every image."""

import torch
import torch.nn.functional as F
from PIL.Image import Image
from torch import Tensor

from ..data.image_decoding import IGNORED
from ..visualization import contact_sheet, draw_classes
from .metrics.segmentation import confusion, iou_by_class, segmentation_scores
from .trainer import EfficientTrainer

SHOWN, SIDE = 4, 272  # images in the picture of predictions, and their size in it


class SegmentationTrainer(EfficientTrainer):
    """For models that return `logits` (B, classes, h, w), as those of transformers do, and take `labels` (B, H, W).

    Scores are those of maps as large as the labels, to which logits are interpolated, as in the pipeline.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, compute_metrics=self.score, **kwargs)
        self.class_ious: dict[str, float] = {}  # of the last evaluation

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        labels = inputs["labels"]
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs)
        loss = outputs.loss.detach()
        if prediction_loss_only:
            return loss, None, None
        counts = confusion(classes_of(outputs.logits, labels.shape[1:]), labels, outputs.logits.shape[1], IGNORED)
        return loss, counts, counts.sum((1, 2))

    def score(self, prediction) -> dict[str, float]:
        """What the Trainer calls as `compute_metrics`."""
        counts = prediction.predictions.sum(0)
        names = self.model.config.id2label
        self.class_ious = {names[i]: round(float(x), 4) for i, x in enumerate(iou_by_class(counts)) if x == x}
        return segmentation_scores(counts)

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device):
        """The loss is the mean over pixels that count; transformers counts those that are ignored too."""
        counted = [{**x, "labels": x["labels"].masked_fill(x["labels"] == IGNORED, -100)} for x in batch_samples]
        return super()._get_num_items_in_batch(counted, device)

    @torch.no_grad()
    def pictures(self) -> dict[str, Image]:
        """Images of the evaluation, their masks and what the model makes of them."""
        data = self.eval_dataset
        batch = data.__getitems__(list(range(0, len(data), -(-len(data) // SHOWN))))
        self.model.eval()
        logits = self.model(pixel_values=batch["pixel_values"].to(self.args.device)).logits
        found = classes_of(logits, batch["labels"].shape[1:]).cpu()
        rows = [
            ("", [picture, draw_classes(picture, truth), draw_classes(picture, seen)])
            for picture, truth, seen in zip(data.pictures(batch["pixel_values"]), batch["labels"], found, strict=True)
        ]
        sheet = contact_sheet(rows, ["image", "truth", "prediction"], SIDE, data.images.class_names)
        return {"predictions": sheet, "example": data.pictures(batch["pixel_values"][:1])[0]}


def classes_of(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, classes, h, w) -> the likeliest class of each pixel (B, *size)"""
    return F.interpolate(logits.float(), size=tuple(size), mode="bilinear", align_corners=False).argmax(1)
