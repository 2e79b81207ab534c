"""Training of classifiers, whose last evaluation can be looked at: what is confused, and images with their answers."""

from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from ..visualization import prediction_sheet
from .confusion_picture import draw_confusion, shortened
from .metrics.classification import score
from .trainer import EfficientTrainer

SHOWN = 8  # right answers in the picture of predictions, and as many wrong ones


class Answers(NamedTuple):
    data: Dataset
    predictions: Tensor  # (N,)
    confidences: Tensor  # (N,)
    labels: Tensor  # (N,)


class ClassificationTrainer(EfficientTrainer):
    """For models that return `logits` (B, classes)."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, compute_metrics=score, **kwargs)
        self.answers: Answers | None = None  # of the last evaluation

    def evaluation_loop(self, dataloader, *args, **kwargs):
        output = super().evaluation_loop(dataloader, *args, **kwargs)
        confidences, predictions = torch.from_numpy(output.predictions).float().softmax(-1).max(-1)
        self.answers = Answers(dataloader.dataset, predictions, confidences, torch.from_numpy(output.label_ids))
        return output

    def pictures(self) -> dict[str, Image.Image]:
        """Of the last evaluation: the confusion matrix and, of images, sixteen of them and one for people to try."""
        data, predictions, _, labels = self.answers
        names = [self.model.config.id2label[i] for i in range(self.model.config.num_labels)]
        drawn = {"confusion": draw_confusion(labels, predictions, names)}
        if not hasattr(data, "images"):
            return drawn
        right = predictions == labels
        groups = []
        for word, chosen in (("right", right), ("wrong: what it says, and what it is", ~right)):
            rows = evenly(chosen.nonzero()[:, 0], SHOWN)
            word, _, explained = word.partition(":")
            title = f"{word}: {int(chosen.sum()):,} of {len(labels):,}{explained and ', ' + explained.strip()}"
            groups.append((title, self.captioned(rows, names)))
        drawn["predictions"] = prediction_sheet(groups)
        drawn["example"] = next(picture for _, group in groups for picture, _ in group)
        return drawn

    def captioned(self, rows: Tensor, names: list[str]) -> list[tuple[Image.Image, str]]:
        """Images as they are in the data, and what the model says of them."""
        if not len(rows):
            return []
        answers, found = self.answers, []
        pixels, _ = answers.data.images.take(rows)
        for row, image in zip(rows.tolist(), pixels, strict=True):
            said, true = int(answers.predictions[row]), int(answers.labels[row])
            caption = f"{shortened(names[said])} ({answers.confidences[row]:.0%})"
            if said != true:
                caption += f", is {shortened(names[true])}"
            found.append((Image.fromarray(image.permute(1, 2, 0).numpy()), caption))
        return found


def evenly(rows: Tensor, count: int) -> Tensor:
    """So many of them, or all, from all over."""
    if len(rows) <= count:
        return rows
    return rows[torch.arange(count) * len(rows) // count]
