"""What comes before fine-tuning: masked patches, and hard-negative contrast (HuggingGreen, research question 3).

    masked        a share of each image's patches is hidden and predicted from the others; needs no labels
    contrastive   images of a class come together, those of other classes go apart (`losses.contrastive_loss`)

What either stage saves is an encoder that `model: {pretrained: <its output_dir>}` of the next stage takes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import ModelOutput

from ..data.balanced_sampler import BalancedSampler
from ..data.image_batches import ImageBatches
from .argument_ranges import COUNT, Range, check_ranges
from .arguments import EfficientTrainingArguments
from .callbacks import without_bars
from .checkpoints import UNFINISHED
from .losses import contrastive_loss
from .patch_schedule import check_patch_selection
from .trainer import EfficientTrainer

MASK_RATIO = 0.15  # of models whose config has none
ROWS = 1024  # of distances that are compared at a time
RANGES = {
    "margin": Range("above 0, at most 2: no two vectors of length 1 are farther apart", lambda x: 0 < x <= 2),
    "projection_size": COUNT,
    "images_per_class": COUNT,
}


@dataclass
class MaskedArguments(EfficientTrainingArguments):
    """Of training on masked patches."""

    metric_for_best_model: str | None = "loss"
    label_names: list[str] | None = field(default_factory=lambda: ["bool_masked_pos"])  # so that evaluation has a loss


@dataclass
class ContrastiveArguments(EfficientTrainingArguments):
    """
    Args:
        images_per_class: K; a batch holds K images of each of per_device_train_batch_size / K classes
        negatives: "hard", the nearest image of another class, or "random", any
        margin: m, the distance from which on a negative is far enough
        projection_size: of the vectors that are compared
    """

    metric_for_best_model: str | None = "recall_at_1"
    images_per_class: int = field(default=8)
    negatives: Literal["hard", "random"] = field(default="hard")
    margin: float = field(default=1.0)
    projection_size: int = field(default=128)

    def __post_init__(self):
        check_ranges(self, RANGES)
        batch, each = self.per_device_train_batch_size, self.images_per_class
        if each < 2 or batch % each or batch < 2 * each:
            raise ValueError(
                f"images_per_class={each} must be at least 2, and per_device_train_batch_size={batch} a multiple of "
                "it that holds two classes or more."
            )
        super().__post_init__()

    @property
    def classes_per_batch(self) -> int:
        """P"""
        return self.per_device_train_batch_size // self.images_per_class


# Masked patches


class MaskedImages(Dataset):
    """Batches of images with masks: `bool_masked_pos` (B, patches) hides max(1, round(mask_ratio · patches)) of each.

    Which depends on (seed, epoch, the image's index) alone. `HuggingGreenViTForMaskedImageModeling` needs this for
    evaluation only: in training it masks a share of the patches that it keeps.
    """

    def __init__(self, images: ImageBatches, patches: int, mask_ratio: float = MASK_RATIO, seed: int = 0):
        self.images, self.patches, self.seed, self.blocks = images, patches, seed, images.blocks
        self.count = max(1, round(mask_ratio * patches))

    @property
    def skipped(self) -> list[str]:
        return self.images.skipped

    def set_epoch(self, epoch: int) -> None:
        self.images.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        batch = self.images.__getitems__(indices)
        masks = torch.zeros(len(indices), self.patches, dtype=torch.bool)
        for mask, index in zip(masks, indices, strict=True):
            order = np.random.default_rng([self.seed, self.images.epoch, int(index)]).permutation(self.patches)
            mask[torch.from_numpy(order[: self.count])] = True
        return {**batch, "bool_masked_pos": masks}


def masked_images(images: ImageBatches, config: PreTrainedConfig, seed: int = 0) -> MaskedImages:
    """With as many patches, and as many of them masked, as a model's config says."""
    sizes = ((x, x) if isinstance(x, int) else x for x in (config.image_size, config.patch_size))
    (height, width), (rows, columns) = sizes
    patches = (height // rows) * (width // columns)
    return MaskedImages(images, patches, getattr(config, "mask_ratio", MASK_RATIO), seed)


# Contrast


def recall_at_1(embeddings: Tensor, labels: Tensor) -> float:
    """The share of images whose nearest other image is of their class."""
    hits = 0
    for start in range(0, len(labels), ROWS):
        near = embeddings[start : start + ROWS] @ embeddings.mT  # (rows, N): the larger, the nearer
        near[torch.arange(len(near)), torch.arange(start, start + len(near))] = -torch.inf
        hits += int((labels[near.argmax(1)] == labels[start : start + ROWS]).sum())
    return hits / len(labels)


def contrastive_scores(args: ContrastiveArguments) -> Callable[[tuple], dict[str, float]]:
    """What a Trainer calls as `compute_metrics`: the loss over balanced batches, and `recall_at_1`."""

    def score(prediction) -> dict[str, float]:
        embeddings, labels = (torch.from_numpy(x) for x in prediction)
        sampler = BalancedSampler(labels, args.classes_per_batch, args.images_per_class)
        batches = torch.tensor(list(sampler)).split(args.per_device_train_batch_size)
        losses = [contrastive_loss(embeddings[rows], labels[rows], args.margin) for rows in batches]
        return {"loss": torch.stack(losses).mean().item(), "recall_at_1": recall_at_1(embeddings, labels)}

    return score


class ContrastiveConfig(PreTrainedConfig):
    """Config of a ContrastiveModel, whose encoder has one of its own."""

    model_type = "contrastive_image_encoder"

    encoder_type: str = ""
    projection_size: int = 128


@dataclass
class ContrastiveOutput(ModelOutput):
    loss: Tensor | None = None
    embeddings: Tensor | None = None


class ContrastiveModel(PreTrainedModel):
    """An encoder with an MLP on its pooled output, for training only: what is kept of it is the encoder.

    Args:
        encoder: a model with a `pooler_output`, or whose first token stands for the image.
        projection_size: of the embeddings.
        margin, negatives: of the loss.
    """

    config_class = ContrastiveConfig
    main_input_name = "pixel_values"

    def __init__(
        self, encoder: PreTrainedModel, projection_size: int = 128, margin: float = 1.0, negatives: str = "hard"
    ):
        super().__init__(ContrastiveConfig(encoder_type=encoder.config.model_type, projection_size=projection_size))
        self.encoder, self.margin, self.negatives = encoder, margin, negatives
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = None  # a layer that classifiers of the family don't have
        width = self.pooled_width()
        self.projection = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, projection_size))

    def pooled_width(self) -> int:
        size, channels = self.encoder.config.image_size, self.encoder.config.num_channels
        height, width = (size, size) if isinstance(size, int) else size
        training = self.encoder.training
        with torch.no_grad():
            pooled = self.pool(self.encoder.eval()(torch.zeros(1, channels, height, width)))
        self.encoder.train(training)
        return pooled.shape[1]

    def pool(self, outputs: ModelOutput) -> Tensor:
        """(B, d): what a classifier would stand on"""
        if outputs.get("pooler_output") is not None:
            return outputs.pooler_output
        if hasattr(self.encoder, "pool"):
            return self.encoder.pool(outputs.last_hidden_state)
        return outputs.last_hidden_state[:, 0]

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.encoder, "set_epoch"):
            self.encoder.set_epoch(epoch)

    def set_patch_share(self, share: float | None, prob: float | None = None) -> None:
        check_patch_selection(self.encoder)
        self.encoder.set_patch_share(share, prob)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ContrastiveOutput:
        """pixel_values (B, C, H, W), labels (B,) -> embeddings (B, projection_size) of length 1"""
        outputs = self.encoder(pixel_values)
        embeddings = F.normalize(self.projection(self.pool(outputs)).float(), dim=-1)
        loss = None
        if labels is not None:
            loss = contrastive_loss(embeddings, labels, self.margin, self.negatives)
            if hasattr(self.encoder, "penalty"):
                loss = loss + self.encoder.penalty(outputs)
        return ContrastiveOutput(loss, embeddings)


class ContrastiveTrainer(EfficientTrainer):
    """Trains a ContrastiveModel on `ImageBatches` in class-balanced batches, and saves its encoder.

    With several processes, each contrasts the images of its own batch.
    """

    def _get_train_sampler(self, train_dataset: ImageBatches | None = None) -> Sampler:
        dataset, args = self.train_dataset if train_dataset is None else train_dataset, self.args
        seed = args.seed if args.data_seed is None else args.data_seed
        labels = dataset.images.labels
        self.loop.sampler = BalancedSampler(labels, args.classes_per_batch, args.images_per_class, seed)
        return self.loop.sampler

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        if folder.name.endswith(UNFINISHED):  # a checkpoint needs the projection too
            super()._save(output_dir, state_dict)
            return
        self.check_weights(self.model.state_dict() if state_dict is None else state_dict, self.state.global_step)
        if state_dict is not None:
            prefix = "encoder."
            state_dict = {k.removeprefix(prefix): x for k, x in state_dict.items() if k.startswith(prefix)}
        with without_bars():
            self.model.encoder.save_pretrained(folder, state_dict=state_dict)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)
