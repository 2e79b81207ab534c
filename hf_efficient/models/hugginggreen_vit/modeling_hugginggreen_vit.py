"""HuggingGreenViT (Limone & Iannotti, "HuggingGreen - A Probabilistic Attention-Based Method for Energy Efficiency").

A Vision Transformer that is trained on the patches worth it: a heuristic ranks patches by their pixels, and for some
batches, fewer with every epoch, the others are dropped before anything is computed of them. Every layer then sees
k + 1 tokens instead of n + 1. (The authors' own code zeroes their pixels, which saves nothing.) With
attention="softmax", heuristic="none" and pooling="cls" this is transformers' ViT, names of weights included.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ...attention.base import check_tensor
from ...layers.patch_embedding import gather_patches, join_patches, take_tokens
from ...layers.patch_selection import PatchSelector
from ...layers.routing import HeadRouter, TokenRouter
from ...layers.sparsity import attach_sparsity
from ..base import check_single_labels
from ..vision_transformer import VisionTransformerModel, VisionTransformerPreTrainedModel, refuse_token_pooling
from .configuration_hugginggreen_vit import HuggingGreenViTConfig
from .detection import Predictor, QueryDecoder, check_objects, check_unpadded
from .outputs import (
    HuggingGreenViTImageClassifierOutput,
    HuggingGreenViTMaskedImageModelingOutput,
    HuggingGreenViTModelOutput,
    HuggingGreenViTObjectDetectionOutput,
)


class HuggingGreenViTPreTrainedModel(VisionTransformerPreTrainedModel):
    config: HuggingGreenViTConfig
    # How far training has come; other checkpoints, those of ViT for example, start at epoch 0.
    _keys_to_ignore_on_load_missing = [r"selector\.(epoch|step)$"]
    _keys_to_ignore_on_load_unexpected = [r"selector\.(epoch|step)$"]
    backbone_is_frozen = False

    def set_epoch(self, epoch: int) -> None:
        """Says how many epochs are completed; `prob` decays with them."""
        if self.base_model.selector is not None:
            self.base_model.selector.set_epoch(epoch)

    def set_patch_share(self, share: float | None, prob: float | None = None) -> None:
        """Says what share of the patches training keeps from now on, and with what probability per batch, instead of
        `top_k` and `prob`; None is what the config says. It is a matter of the run, and not saved: see
        `training/patch_schedule.py`.
        """
        if self.base_model.selector is None:
            raise ValueError("heuristic='none' keeps all patches: there is no share to set. Choose a heuristic.")
        self.base_model.selector.set_share(share, prob)

    def selection_probability(self, epoch: int | None = None) -> float:
        """The probability that a batch loses patches, in an epoch or, by default, now."""
        selector = self.base_model.selector
        return 0.0 if selector is None else selector.probability(epoch)

    def freeze_backbone(self) -> None:
        """Trains only what stands on the backbone, which runs as in evaluation from now on: without gradients and
        dropout, and without selection unless `select_at_eval`. It is a matter of this run, and not saved.
        """
        self.backbone_is_frozen = True
        self.base_model.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True):
        super().train(mode)
        if self.backbone_is_frozen:
            nn.Module.train(self.base_model, False)
        return self

    def run_backbone(self, pixel_values: Tensor | None, **kwargs) -> HuggingGreenViTModelOutput:
        with torch.no_grad() if self.backbone_is_frozen else nullcontext():
            return self.base_model(pixel_values, **kwargs)

    def penalty(self, outputs: HuggingGreenViTModelOutput) -> Tensor | float:
        """What sparsity and balance add to the loss in training."""
        if not self.base_model.training:
            return 0.0
        config, penalty = self.config, 0.0
        if outputs.attn_sparsity is not None:
            penalty = penalty + config.attention_sparsity_weight * outputs.attn_sparsity
        if outputs.routing_balance is not None:
            penalty = penalty + config.routing_balance_weight * outputs.routing_balance
        return penalty


class HuggingGreenViTModel(HuggingGreenViTPreTrainedModel, VisionTransformerModel):
    """The bare model.

    Args:
        use_mask_token: own an embedding for masked patches.
    """

    def __init__(self, config: HuggingGreenViTConfig, use_mask_token: bool = False):
        super().__init__(config, use_mask_token=use_mask_token)
        if config.attention_sparsity != "none" and config.attention_sparsity_weight:
            attach_sparsity(self, config.attention_sparsity)
        self.selector = self.build_selector()
        self.post_init()

    def build_attention(self, index: int) -> nn.Module:
        config = self.config
        if config.routing != "heads":
            return super().build_attention(index)
        return HeadRouter(
            config.attention,
            config.hidden_size,
            config.num_attention_heads,
            config.num_routed_heads,
            **config.options_of_layer(index),
        )

    def build_token_router(self) -> TokenRouter | None:
        config = self.config
        if config.routing != "tokens":
            return None
        return TokenRouter(None, config.hidden_size, config.routing_capacity, config.num_prefix_tokens)

    def build_selector(self) -> PatchSelector | None:
        config = self.config
        if config.heuristic == "none":
            return None
        mean, std = config.normalisation()
        return PatchSelector(
            config.heuristic,
            config.patch_size,
            config.num_kept_patches,
            config.num_patches,
            probabilistic=config.probabilistic,
            prob=config.prob,
            prob_decay_rate=config.prob_decay_rate,
            prob_schedule=config.prob_schedule,
            select_at_eval=config.select_at_eval,
            seed=config.selection_seed,
            image_mean=mean,
            image_std=std,
        )

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: Tensor | None = None,
        bool_masked_pos: Tensor | None = None,
        patch_indices: Tensor | None = None,
        select_patches: bool = True,
        pooled_only: bool = False,
        interpolate_pos_encoding: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> HuggingGreenViTModelOutput:
        """pixel_values (B, C, H, W) -> last_hidden_state (B, N, d), pooler_output (B, d)

        Args:
            bool_masked_pos (B, n): True = masked.
            patch_indices (B, k): the patches to keep, instead of those that the heuristic would.
            select_patches: False keeps all patches, or `patch_indices`.
            pooled_only: make no last_hidden_state, of which CLS pooling needs only a part.
        """
        if patch_indices is not None and pixel_values is not None:
            self.check_indices(pixel_values, patch_indices, interpolate_pos_encoding)
        elif select_patches:
            patch_indices = self.select(pixel_values, interpolate_pos_encoding)
        shows_all = kwargs.get("output_hidden_states", self.config.output_hidden_states)
        encoded = self.encode(
            pixel_values,
            patch_indices=patch_indices,
            bool_masked_pos=bool_masked_pos,
            interpolate_pos_encoding=interpolate_pos_encoding,
            output_attentions=kwargs.get("output_attentions"),
            cls_only=pooled_only and self.config.pooling == "cls" and not shows_all,
        )
        return HuggingGreenViTModelOutput(
            last_hidden_state=None if pooled_only else self.layernorm(encoded.hidden_states),
            pooler_output=self.layernorm(self.pool(encoded.hidden_states)),
            patch_indices=patch_indices,
            attn_sparsity=encoded.sparsity,
            routing_balance=encoded.balance,
        )

    def pool(self, hidden_states: Tensor) -> Tensor:
        """(B, N, d) -> (B, d)"""
        return hidden_states[:, 0] if self.config.pooling == "cls" else hidden_states.mean(1)

    def select(self, pixel_values: Tensor | None, interpolate_pos_encoding: bool | None = None) -> Tensor | None:
        """The patches that this pass keeps, (B, k), or None for all. In training every call is a step."""
        if self.selector is None or pixel_values is None:
            return None
        self.embeddings.check_image(pixel_values, bool(interpolate_pos_encoding))
        return self.selector(pixel_values)

    def check_indices(
        self, pixel_values: Tensor, patch_indices: Tensor, interpolate_pos_encoding: bool | None
    ) -> None:
        check_tensor("patch_indices", patch_indices)
        grid = self.embeddings.check_image(pixel_values, bool(interpolate_pos_encoding))
        batch, patches = pixel_values.shape[0], grid[0] * grid[1]
        if patch_indices.dim() != 2 or patch_indices.shape[0] != batch or patch_indices.is_floating_point():
            raise ValueError(
                f"patch_indices must be integers (batch, kept patches) for a batch of {batch}, got "
                f"{tuple(patch_indices.shape)} of {patch_indices.dtype}."
            )
        if patch_indices.device.type != "cpu" or torch.compiler.is_compiling():
            return
        ordered = patch_indices.sort(1).values
        if not ordered.numel() or ordered[:, 0].min() < 0 or ordered[:, -1].max() >= patches:
            raise ValueError(f"patch_indices must be at least one index per image, from 0 to {patches - 1}.")
        if (ordered.diff(dim=1) == 0).any():
            raise ValueError("patch_indices names a patch of an image twice.")


class HuggingGreenViTForImageClassification(HuggingGreenViTPreTrainedModel):
    """A linear classifier on the pooled tokens: mean over all, CLS included, then LayerNorm; or the CLS token."""

    def __init__(self, config: HuggingGreenViTConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.vit = HuggingGreenViTModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels) if config.num_labels else nn.Identity()
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        patch_indices: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> HuggingGreenViTImageClassifierOutput:
        """labels (B,) class indices -> logits (B, num_labels)"""
        check_single_labels(labels, self.config.num_labels)
        outputs = self.run_backbone(
            pixel_values,
            patch_indices=patch_indices,
            pooled_only=True,
            interpolate_pos_encoding=interpolate_pos_encoding,
            **kwargs,
        )
        logits = self.classifier(outputs.pooler_output)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config, **kwargs)
            total = kwargs.get("num_items_in_batch")  # of all batches that gradients accumulate over
            loss = loss + self.penalty(outputs) * (1 if total is None else labels.ne(-100).sum() / total)
        return HuggingGreenViTImageClassifierOutput(loss=loss, logits=logits, **outputs.passed_on())


class HuggingGreenViTForMaskedImageModeling(HuggingGreenViTPreTrainedModel):
    """Predicts masked patches, the paper's pre-training: `mask_ratio` of the kept patches are hidden, one linear map
    makes p²C pixels of each token, and the loss is the mean squared error over hidden patches, each of whose pixels
    are normalised to mean 0 and variance 1.
    """

    def __init__(self, config: HuggingGreenViTConfig):
        super().__init__(config)
        refuse_token_pooling(config)
        self.vit = HuggingGreenViTModel(config, use_mask_token=True)
        self.decoder = nn.Linear(config.hidden_size, config.patch_size**2 * config.num_channels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        bool_masked_pos: Tensor | None = None,
        patch_indices: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> HuggingGreenViTMaskedImageModelingOutput:
        """pixel_values (B, C, H, W) -> reconstruction (B, C, H, W)

        The reconstruction has every kept patch's prediction, at that patch's own mean and variance, and dropped
        patches as they were. There is a loss if there is a mask: `bool_masked_pos` (B, n), True = masked, of which
        dropped patches don't count; in training a random one by default.
        """
        if patch_indices is None:
            patch_indices = self.vit.select(pixel_values, interpolate_pos_encoding)
        if bool_masked_pos is None and self.training and pixel_values is not None:
            bool_masked_pos = self.random_mask(pixel_values, patch_indices)
        outputs = self.run_backbone(
            pixel_values,
            bool_masked_pos=bool_masked_pos,
            patch_indices=patch_indices,
            select_patches=False,
            interpolate_pos_encoding=interpolate_pos_encoding,
            **kwargs,
        )
        predicted = self.decoder(outputs.last_hidden_state[:, self.config.num_prefix_tokens :])  # (B, k, p²C)
        pixels = gather_patches(pixel_values, self.config.patch_size).flatten(2).to(predicted.dtype)  # (B, n, p²C)
        kept = pixels if patch_indices is None else take_tokens(pixels, patch_indices)
        loss = None
        if bool_masked_pos is not None:
            masked = bool_masked_pos.bool()
            masked = masked if patch_indices is None else masked.gather(1, patch_indices)
            error = (predicted - F.layer_norm(kept, kept.shape[-1:], eps=1e-6)).square().mean(-1)  # (B, k)
            loss = (error * masked).sum() / masked.sum().clamp_min(1) + self.penalty(outputs)
        return HuggingGreenViTMaskedImageModelingOutput(
            loss=loss,
            reconstruction=self.reconstruct(pixel_values, pixels, kept, predicted, patch_indices),
            bool_masked_pos=bool_masked_pos,
            **outputs.passed_on(),
        )

    def random_mask(self, pixel_values: Tensor, patch_indices: Tensor | None = None) -> Tensor:
        """max(1, round(mask_ratio·k)) of each image's kept patches: (B, n) bool"""
        batch, patch = pixel_values.shape[0], self.config.patch_size
        patches = pixel_values.shape[2] // patch * (pixel_values.shape[3] // patch)
        kept = patches if patch_indices is None else patch_indices.shape[1]
        count = max(1, round(self.config.mask_ratio * kept))
        hidden = torch.rand(batch, kept, device=pixel_values.device).argsort(1)[:, :count]
        if patch_indices is not None:
            hidden = patch_indices.gather(1, hidden)
        return torch.zeros(batch, patches, dtype=torch.bool, device=pixel_values.device).scatter(1, hidden, True)

    def reconstruct(self, pixel_values, pixels, kept, predicted, patch_indices) -> Tensor:
        """Predictions (B, k, p²C) as an image (B, C, H, W)"""
        wide = kept.to(torch.promote_types(kept.dtype, torch.float32))  # squares overflow float16
        variance, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
        restored = (predicted * (variance + 1e-6).sqrt() + mean).to(pixels.dtype)
        if patch_indices is not None:
            restored = pixels.scatter(1, patch_indices.unsqueeze(-1).expand_as(restored), restored)
        patch = self.config.patch_size
        grid = (pixel_values.shape[2] // patch, pixel_values.shape[3] // patch)
        return join_patches(restored.unflatten(2, (-1, patch, patch)), grid)


class HuggingGreenViTForObjectDetection(HuggingGreenViTPreTrainedModel):
    """`num_queries` objects per image: learned queries look at the patches through one layer of cross-attention; an
    MLP each for the class and the box. Trained with transformers' Hungarian loss (Carion et al. 2020, DETR).
    """

    def __init__(self, config: HuggingGreenViTConfig):
        super().__init__(config)
        self.vit = HuggingGreenViTModel(config)
        self.decoder = QueryDecoder(config)
        self.class_predictor = Predictor(config.hidden_size, config.num_labels + 1)
        self.bbox_predictor = Predictor(config.hidden_size, 4)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: list[dict[str, Tensor]] | None = None,
        patch_indices: Tensor | None = None,
        pixel_mask: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> HuggingGreenViTObjectDetectionOutput:
        """
        Args:
            labels: one dict per image: 'class_labels' (objects,), 'boxes' (objects, 4) as cx, cy, w, h in [0, 1].
                Objects beyond the number of queries are left out.
            pixel_mask: what transformers' processors say of padding; there may be none.
        """
        if pixel_mask is not None:
            check_unpadded(pixel_mask)
        if labels is not None and pixel_values is not None:
            check_objects(labels, len(pixel_values), self.config.num_labels)
        outputs = self.run_backbone(
            pixel_values,
            patch_indices=patch_indices,
            interpolate_pos_encoding=interpolate_pos_encoding,
            **kwargs,
        )
        objects = self.decoder(outputs.last_hidden_state[:, self.config.num_prefix_tokens :])  # (B, Q, d)
        logits, pred_boxes = self.class_predictor(objects), self.bbox_predictor(objects).sigmoid()
        loss = loss_dict = None
        if labels is not None:
            loss, loss_dict = self.detection_loss(logits.float(), pred_boxes.float(), labels, **kwargs)
            loss = loss + self.penalty(outputs)
        return HuggingGreenViTObjectDetectionOutput(
            loss=loss,
            loss_dict=loss_dict,
            logits=logits,
            pred_boxes=pred_boxes,
            last_hidden_state=outputs.last_hidden_state,
            **outputs.passed_on(),
        )

    def detection_loss(self, logits: Tensor, pred_boxes: Tensor, labels: list, **kwargs) -> tuple[Tensor, dict]:
        device = logits.device
        labels = [
            {"class_labels": x["class_labels"].long().to(device), "boxes": x["boxes"].to(device, logits.dtype)}
            for x in labels
        ]
        return self.loss_function(logits, labels, device, pred_boxes, self.config, **kwargs)[:2]


__all__ = [
    "HuggingGreenViTForImageClassification",
    "HuggingGreenViTForMaskedImageModeling",
    "HuggingGreenViTForObjectDetection",
    "HuggingGreenViTModel",
    "HuggingGreenViTPreTrainedModel",
]
