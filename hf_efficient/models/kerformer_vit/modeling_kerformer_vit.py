"""KerformerViT (Gan et al. 2023, "A novel approach to attention mechanism using kernel functions: Kerformer").

A Vision Transformer whose cost grows with the number of patches, not with its square. Everything but the attention is
transformers' ViT, names of weights included.
"""

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput, MaskedImageModelingOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..base import check_single_labels
from ..vision_transformer import VisionTransformerModel, VisionTransformerPreTrainedModel, refuse_token_pooling
from .configuration_kerformer_vit import KerformerViTConfig


class KerformerViTPreTrainedModel(VisionTransformerPreTrainedModel):
    config: KerformerViTConfig


class KerformerViTPooler(nn.Module):
    """tanh(W x_CLS), as in transformers' ViT; of the mean over tokens with `pooling="mean"` or without CLS."""

    def __init__(self, config: KerformerViTConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.pooler_output_size)
        self.activation = ACT2FN[config.pooler_act]

    def forward(self, pooled: Tensor) -> Tensor:
        return self.activation(self.dense(pooled))


class KerformerViTModel(KerformerViTPreTrainedModel, VisionTransformerModel):
    """The bare model.

    Args:
        add_pooling_layer: make a `pooler_output`.
        use_mask_token: own an embedding for masked patches.
    """

    def __init__(self, config: KerformerViTConfig, add_pooling_layer: bool = True, use_mask_token: bool = False):
        super().__init__(config, use_mask_token=use_mask_token)
        self.pooler = KerformerViTPooler(config) if add_pooling_layer else None
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: Tensor | None = None,
        bool_masked_pos: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """pixel_values (B, C, H, W), bool_masked_pos (B, patches) -> last_hidden_state (B, N, d)"""
        encoded = self.encode(
            pixel_values,
            bool_masked_pos=bool_masked_pos,
            interpolate_pos_encoding=interpolate_pos_encoding,
            output_attentions=kwargs.get("output_attentions"),
        )
        hidden_states = self.layernorm(encoded.hidden_states)
        pooled = None if self.pooler is None else self.pooler(self.pool(hidden_states))
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)

    def pool(self, hidden_states: Tensor) -> Tensor:
        """(B, N, d) -> (B, d)"""
        by_cls = self.config.use_cls_token and self.config.pooling != "mean"
        return hidden_states[:, 0] if by_cls else hidden_states.mean(1)


class KerformerViTForImageClassification(KerformerViTPreTrainedModel):
    """A linear classifier on the CLS token, or on the mean over tokens with `pooling="mean"` or without CLS."""

    def __init__(self, config: KerformerViTConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.vit = KerformerViTModel(config, add_pooling_layer=False)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels) if config.num_labels else nn.Identity()
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        """labels (B,) class indices -> logits (B, num_labels)"""
        check_single_labels(labels, self.config.num_labels)
        outputs = self.vit(pixel_values, interpolate_pos_encoding=interpolate_pos_encoding, **kwargs)
        logits = self.classifier(self.vit.pool(outputs.last_hidden_state))
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return ImageClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class KerformerViTForMaskedImageModeling(KerformerViTPreTrainedModel):
    """Reconstructs masked patches (Xie et al. 2022, SimMIM): one linear map from each token to its pixels, L1 loss."""

    def __init__(self, config: KerformerViTConfig):
        super().__init__(config)
        refuse_token_pooling(config)
        self.vit = KerformerViTModel(config, add_pooling_layer=False, use_mask_token=True)
        stride = config.encoder_stride
        self.decoder = nn.Sequential(
            nn.Conv2d(config.hidden_size, stride**2 * config.num_channels, kernel_size=1), nn.PixelShuffle(stride)
        )
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        bool_masked_pos: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedImageModelingOutput:
        """bool_masked_pos (B, patches), True = masked -> reconstruction (B, C, H, W); the loss is over those"""
        patch = self.config.patch_size
        if bool_masked_pos is not None and patch != self.config.encoder_stride:
            raise ValueError(
                f"bool_masked_pos needs encoder_stride={self.config.encoder_stride} to equal patch_size={patch}, "
                "so that pixels can be compared."
            )
        outputs = self.vit(
            pixel_values,
            bool_masked_pos=bool_masked_pos,
            interpolate_pos_encoding=interpolate_pos_encoding,
            **kwargs,
        )
        grid = tuple(size // patch for size in pixel_values.shape[2:])
        tokens = outputs.last_hidden_state[:, self.config.num_prefix_tokens :]
        reconstruction = self.decoder(tokens.mT.unflatten(2, grid))
        loss = None
        if bool_masked_pos is not None:
            error = F.l1_loss(reconstruction, pixel_values.to(reconstruction.dtype), reduction="none")
            mask = bool_masked_pos.to(error.dtype).view(-1, 1, *grid)
            mask = mask.repeat_interleave(patch, 2).repeat_interleave(patch, 3)  # (B, 1, H, W)
            loss = (error * mask).sum() / (mask.sum() + 1e-5) / self.config.num_channels
        return MaskedImageModelingOutput(
            loss=loss,
            reconstruction=reconstruction,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


__all__ = [
    "KerformerViTForImageClassification",
    "KerformerViTForMaskedImageModeling",
    "KerformerViTModel",
    "KerformerViTPreTrainedModel",
]
