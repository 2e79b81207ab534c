"""ImageSig (Ibrahim & Lyons 2022, "ImageSig: A Signature Transform for Ultra-Lightweight Image Recognition").

Every row of an image is a path through the colours, and its signature (`signature.py`) a hundred numbers that say how
the path goes, whatever its speed. What learns is small: convolutions over the rows, two linear layers. Signatures do
not change in training, so they may be computed once for all images and given instead of them.
"""

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from ...attention import Attention, build_attention
from ...attention.base import check_tensor
from ...layers.block import TransformerBlock
from ..base import EfficientPreTrainedModel, check_single_labels
from .configuration_imagesig import ImageSigConfig
from .signature import ImageSignatures


class RowConvolution(GradientCheckpointingLayer):
    """A convolution over neighbouring rows, activation, max pooling: (B, N, d) -> (B, N', d')"""

    def __init__(self, config: ImageSigConfig, in_channels: int, out_channels: int):
        super().__init__()
        self.convolution = nn.Conv1d(in_channels, out_channels, config.kernel_size)
        self.activation = ACT2FN[config.hidden_act]
        self.pooling = nn.MaxPool1d(config.pool_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.pooling(self.activation(self.convolution(hidden_states.mT))).mT


class ImageSigPreTrainedModel(EfficientPreTrainedModel):
    """Weights start from Glorot's uniform distribution, as the paper's do: there is no norm to make up for another."""

    config: ImageSigConfig
    base_model_prefix = "imagesig"
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    supports_gradient_checkpointing = True
    _no_split_modules = ["RowConvolution", "TransformerBlock"]
    _can_record_outputs = {
        "hidden_states": [
            OutputRecorder(RowConvolution),
            OutputRecorder(TransformerBlock, capture_initial_hidden_state=False),
        ],
        "attentions": Attention,
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Linear | nn.Conv1d):
            return super()._init_weights(module)
        init.xavier_uniform_(module.weight)
        if module.bias is not None:
            init.zeros_(module.bias)


class ImageSigModel(ImageSigPreTrainedModel):
    """The bare model: signatures, convolutions over them, and one linear layer that sees all rows."""

    def __init__(self, config: ImageSigConfig):
        super().__init__(config)
        self.signatures = ImageSignatures(**config.signature_options())
        widths = config.signature_width, config.stem_channels, config.hidden_size
        self.convolutions = nn.ModuleList(RowConvolution(config, *widths[i : i + 2]) for i in range(2))
        self.layers = nn.ModuleList(self.build_block(index) for index in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.num_positions * config.hidden_size, config.pooler_output_size)
        self.activation = ACT2FN[config.hidden_act]
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The first layer that learns: signatures do not."""
        return self.convolutions[0]

    def build_block(self, index: int) -> TransformerBlock:
        config, options = self.config, self.config.options_of_layer(index)
        attention = build_attention(config.attention, config.hidden_size, config.num_attention_heads, **options)
        return TransformerBlock(attention, **config.block_options())

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: Tensor | None = None,
        signatures: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """pixel_values (B, C, H, W), or their signatures (B, paths, width), as `self.signatures` makes them
        -> last_hidden_state (B, N, d), pooler_output (B, pooler_output_size)"""
        if signatures is None:
            self.check_image(pixel_values)
            signatures = self.signatures(pixel_values)
        self.check_signatures(signatures)
        hidden_states = signatures.to(self.pooler.weight.dtype)
        if self.training and self.convolutions[0].gradient_checkpointing and not hidden_states.requires_grad:
            # Reentrant checkpointing teaches no layer whose input needs no gradient.
            hidden_states = hidden_states.detach().requires_grad_()
        for convolution in self.convolutions:
            hidden_states = convolution(hidden_states)
        output_attentions = kwargs.get("output_attentions", self.config.output_attentions)
        for layer in self.layers:
            hidden_states = layer(hidden_states, output_attentions=bool(output_attentions)).hidden_states
        pooled = self.activation(self.pooler(hidden_states.flatten(1)))
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)

    def check_image(self, pixel_values: Tensor | None) -> None:
        if pixel_values is None:
            raise ValueError("pixel_values is missing: a batch of images (batch, channels, height, width) is needed.")
        check_tensor("pixel_values", pixel_values)
        channels, size = self.config.num_channels, self.config.image_shape
        if pixel_values.dim() != 4 or pixel_values.shape[1] != channels:
            raise ValueError(
                f"pixel_values must be (batch, {channels}, height, width), as num_channels={channels}; "
                f"got {tuple(pixel_values.shape)}."
            )
        if not pixel_values.shape[0]:
            raise ValueError(f"pixel_values {tuple(pixel_values.shape)} is empty: at least one image is needed.")
        if tuple(pixel_values.shape[2:]) != size:
            raise ValueError(
                f"pixel_values are {pixel_values.shape[2]}x{pixel_values.shape[3]} pixels, but image_size is "
                f"{size[0]}x{size[1]}: resize them."
            )

    def check_signatures(self, signatures: Tensor) -> None:
        check_tensor("signatures", signatures)
        shape = self.config.num_paths, self.config.signature_width
        if signatures.dim() != 3 or tuple(signatures.shape[1:]) != shape:
            raise ValueError(f"signatures must be (batch, {shape[0]}, {shape[1]}), got {tuple(signatures.shape)}.")


class ImageSigForImageClassification(ImageSigPreTrainedModel):
    """Dropout and a linear classifier on the pooled rows."""

    def __init__(self, config: ImageSigConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.imagesig = ImageSigModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        width = config.pooler_output_size
        self.classifier = nn.Linear(width, config.num_labels) if config.num_labels else nn.Identity()
        self.post_init()

    @property
    def fixed_features(self) -> ImageSignatures:
        """What data may compute of images once and give instead of them."""
        return self.imagesig.signatures

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        signatures: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        """labels (B,) class indices -> logits (B, num_labels)"""
        check_single_labels(labels, self.config.num_labels)
        outputs = self.imagesig(pixel_values, signatures=signatures, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return ImageClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


__all__ = ["ImageSigForImageClassification", "ImageSigModel", "ImageSigPreTrainedModel"]
