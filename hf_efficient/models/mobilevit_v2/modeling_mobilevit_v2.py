"""MobileViTv2 (Mehta & Rastegari 2022, "Separable Self-attention for Mobile Vision Transformers").

A light network of convolutions with attention in the last three of five stages. Weights are named as in transformers'
MobileViTV2, so that checkpoints go both ways. With block="v1" it is MobileViT, the first version (Mehta & Rastegari
2021), whose checkpoints of transformers load.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.backbone_utils import BackboneMixin, filter_output_hidden_states
from transformers.modeling_outputs import (
    BackboneOutput,
    BaseModelOutputWithPooling,
    ImageClassifierOutput,
    SemanticSegmenterOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from ...attention import Attention
from ...attention.base import check_tensor
from ..base import EfficientPreTrainedModel, check_single_labels
from .blocks import MobileViTv2Encoder, Stage
from .configuration_mobilevit_v2 import MobileViTv2Config
from .convolution import ConvLayer
from .detection import SSDLite, check_boxes, decode_boxes, detect, make_anchors, ssd_loss
from .inference import fuse, run_in_slices
from .segmentation import SEGMENTATION_HEADS, AuxiliaryHead
from .separable_attention import SeparableAttention

# transformers' MobileViT, whose names of weights match none of MobileViTV2's.
STORED_V1_NAMES = {
    r"^mobilevit\.": "mobilevitv2.",
    r"attention\.attention\.query": "attention.q_proj",
    r"attention\.attention\.key": "attention.k_proj",
    r"attention\.attention\.value": "attention.v_proj",
    r"attention\.output\.dense": "attention.o_proj",
    r"intermediate\.dense": "ffn.fc1",
    r"(?<!attention\.)output\.dense": "ffn.fc2",
}


class MobileViTv2PreTrainedModel(EfficientPreTrainedModel):
    """Convolutions start from a Kaiming normal distribution, BatchNorms from 1, linear layers, whether or not they are
    called 1×1 convolutions, from a truncated normal.

    `output_attentions` gives separable attention's context scores as maps (B, L, H, W), one for each layer; of other
    mechanisms the weights (B·P, heads, N, N) among the pixels of each of the P places in a patch.
    """

    config: MobileViTv2Config
    base_model_prefix = "mobilevitv2"
    main_input_name = "pixel_values"
    _input_embed_layer = "conv_stem"
    input_modalities = ("image",)
    supports_gradient_checkpointing = True
    is_fused = False
    _no_split_modules = ["MobileNetStage", "MobileViTv1Stage", "MobileViTv2Stage"]
    _can_record_outputs = {
        "hidden_states": OutputRecorder(Stage, capture_initial_hidden_state=False),
        "attentions": [OutputRecorder(SeparableAttention, index=1), OutputRecorder(Attention, index=1)],
    }

    @classmethod
    def from_pretrained(cls, *args, key_mapping: dict[str, str] | None = None, **kwargs):
        return super().from_pretrained(*args, key_mapping=key_mapping or STORED_V1_NAMES, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d) and module.bias is None:  # what has a bias is attention, FFN or classifier
            init.kaiming_normal_(module.weight)
        else:
            super()._init_weights(module)

    def for_inference(self) -> "MobileViTv2PreTrainedModel":
        """A copy that computes the same faster, for evaluation only; see `inference.fuse`."""
        return fuse(self)

    def __call__(self, *args, **kwargs):
        if self.is_fused and not torch.compiler.is_compiling():
            return run_in_slices(super().__call__, self.config, *args, **kwargs)
        return super().__call__(*args, **kwargs)

    def save_pretrained(self, *args, save_original_format: bool = False, **kwargs):
        if self.is_fused:
            raise ValueError(
                "a model made by for_inference() has no checkpoint of its own: save the one it was made of."
            )
        return super().save_pretrained(*args, save_original_format=save_original_format, **kwargs)


class MobileViTv2Model(MobileViTv2PreTrainedModel):
    """The bare model: five stages, of which the last three have attention, and the mean over the last map.

    Args:
        expand_output: make a `pooler_output`; with block="v1" of a wider map, by one more 1×1 convolution.
    """

    def __init__(self, config: MobileViTv2Config, expand_output: bool = True):
        super().__init__(config)
        self.expand_output = expand_output
        self.conv_stem = ConvLayer(
            config.num_channels, config.stage_widths[0], 3, stride=2, activation=config.hidden_act
        )
        self.encoder = MobileViTv2Encoder(config)
        self.conv_1x1_exp = None
        if expand_output and config.block == "v1":
            widths = config.stage_widths[-1], config.pooled_width
            self.conv_1x1_exp = ConvLayer(*widths, activation=config.hidden_act)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self, pixel_values: Tensor | None = None, **kwargs: Unpack[TransformersKwargs]
    ) -> BaseModelOutputWithPooling:
        """pixel_values (B, C, H, W) -> last_hidden_state (B, C', H / 32, W / 32), pooler_output (B, C')"""
        features = self.encode(pixel_values, kwargs.get("output_attentions"))
        features = features if self.conv_1x1_exp is None else self.conv_1x1_exp(features)
        pooled = features.mean((2, 3)) if self.expand_output else None
        return BaseModelOutputWithPooling(last_hidden_state=features, pooler_output=pooled)

    def encode(self, pixel_values: Tensor | None, output_attentions: bool | None) -> Tensor:
        """The last map."""
        channels = self.config.num_channels
        if pixel_values is None:
            raise ValueError("pixel_values is missing: a batch of images (batch, channels, height, width) is needed.")
        check_tensor("pixel_values", pixel_values)
        if pixel_values.dim() != 4 or pixel_values.shape[1] != channels:
            raise ValueError(
                f"pixel_values must be (batch, {channels}, height, width), as num_channels={channels}; "
                f"got {tuple(pixel_values.shape)}."
            )
        if 0 in pixel_values.shape:
            raise ValueError(f"pixel_values {tuple(pixel_values.shape)} is empty.")
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        pixel_values = pixel_values.to(self.dtype, memory_format=torch.channels_last)
        return self.encoder(self.conv_stem(pixel_values), bool(output_attentions))


class MobileViTv2ForImageClassification(MobileViTv2PreTrainedModel):
    """A linear classifier on the mean over the last map."""

    def __init__(self, config: MobileViTv2Config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.mobilevitv2 = MobileViTv2Model(config)
        self.dropout = nn.Dropout(config.classifier_dropout_prob if config.block == "v1" else 0.0)
        width = config.pooled_width
        self.classifier = nn.Linear(width, config.num_labels) if config.num_labels else nn.Identity()
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        """labels (B,) class indices -> logits (B, num_labels)"""
        check_single_labels(labels, self.config.num_labels)
        outputs = self.mobilevitv2(pixel_values, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return ImageClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class MobileViTv2ForSemanticSegmentation(MobileViTv2PreTrainedModel):
    """DeepLabv3 or PSPNet on the last map (`config.segmentation_head`), for training also an auxiliary head."""

    def __init__(self, config: MobileViTv2Config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.mobilevitv2 = MobileViTv2Model(config, expand_output=False)
        self.segmentation_head = SEGMENTATION_HEADS[config.segmentation_head](config)
        self.auxiliary_head = AuxiliaryHead(config) if config.use_auxiliary_head else None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | list[int] | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SemanticSegmenterOutput:
        """labels (B, H, W) class of each pixel -> logits (B, num_labels, H / stride, W / stride)"""
        self.check_labels(pixel_values, labels)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        auxiliary = self.auxiliary_head if self.training and labels is not None else None
        needed = output_hidden_states if auxiliary is None else True  # all, though some layers' were asked for
        outputs = self.mobilevitv2(pixel_values, output_hidden_states=needed, **kwargs)
        logits = self.segmentation_head(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits,
                labels,
                ignore_index=self.config.semantic_loss_ignore_index,
                auxiliary_logits=None if auxiliary is None else auxiliary(outputs.hidden_states[3]),
                auxiliary_loss_weight=self.config.auxiliary_loss_weight,
                **kwargs,
            )
        return SemanticSegmenterOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states if output_hidden_states else None,
            attentions=outputs.attentions,
        )

    def check_labels(self, pixel_values: Tensor | None, labels: Tensor | None) -> None:
        if labels is None:
            return
        check_tensor("labels", labels)
        if self.config.num_labels == 1:
            raise ValueError("num_labels=1: segmentation needs two labels or more.")
        if labels.dim() != 3 or pixel_values is None or len(labels) != len(pixel_values):
            raise ValueError(f"labels must be (batch, height, width), got {tuple(labels.shape)}.")
        ignored = labels == self.config.semantic_loss_ignore_index
        labels = labels.masked_fill(labels == -100, -1).masked_fill(ignored, -100)
        check_single_labels(labels, self.config.num_labels)


@dataclass
class MobileViTv2ObjectDetectionOutput(ModelOutput):
    """
    Args:
        loss: sum of `loss_dict`, with labels.
        logits: (B, detections, num_labels + 1), "no object" last; in training (B, anchors, num_labels + 1).
        pred_boxes: (B, detections or anchors, 4), centre, width and height, relative to the image.
        last_hidden_state: (B, C, H / 32, W / 32).
    """

    loss: Tensor | None = None
    loss_dict: dict | None = None
    logits: Tensor | None = None
    pred_boxes: Tensor | None = None
    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class MobileViTv2ForObjectDetection(MobileViTv2PreTrainedModel):
    """SSDLite on the last two stages.

    In training, and with `config.ssd_suppression=False`, the output holds the predictions of all anchors. In
    evaluation it holds what non-maximum suppression leaves, so that `post_process_object_detection` of transformers'
    processors, which only applies a softmax and a threshold, gives final detections.
    """

    def __init__(self, config: MobileViTv2Config):
        super().__init__(config)
        if config.output_stride != 32:
            raise ValueError(f"output_stride={config.output_stride}: object detection needs 32.")
        self.mobilevitv2 = MobileViTv2Model(config, expand_output=False)
        self.detection_head = SSDLite(config)
        self.loss_function = ssd_loss
        self.post_init()

    @can_return_tuple
    @filter_output_hidden_states
    def forward(
        self,
        pixel_values: Tensor | None = None,
        pixel_mask: Tensor | None = None,
        labels: list[dict[str, Tensor]] | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MobileViTv2ObjectDetectionOutput:
        """labels: for each image `class_labels` (n,) and `boxes` (n, 4), centre, width and height, relative to it."""
        checked = pixel_mask is not None and pixel_mask.device.type == "cpu" and not torch.compiler.is_compiling()
        if checked and not pixel_mask.all():
            raise ValueError("pixel_mask: padded images are not supported; resize all to the same size.")
        outputs = self.mobilevitv2(pixel_values, **kwargs)
        offsets, logits, sizes = self.detection_head(*outputs.hidden_states[3:])
        anchors = make_anchors(self.config, sizes, device=offsets.device)
        boxes = decode_boxes(offsets.float(), anchors, self.config.ssd_variances)
        loss = losses = None
        if labels is not None:
            check_boxes(labels, len(logits), self.config.num_labels)
            losses = self.loss_function(offsets, logits, anchors, labels, self.config, **kwargs)
            loss = sum(losses.values())
        if self.config.ssd_suppression and not self.training:
            logits, boxes = detect(logits, boxes, self.config)
        return MobileViTv2ObjectDetectionOutput(
            loss=loss,
            loss_dict=losses,
            logits=logits,
            pred_boxes=boxes,
            last_hidden_state=outputs.last_hidden_state,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class MobileViTv2Backbone(BackboneMixin, MobileViTv2Model):
    """Maps of the stem and of the stages for another model to build on; `config.out_features` says which."""

    _can_record_outputs = {
        **MobileViTv2PreTrainedModel._can_record_outputs,
        "hidden_states": OutputRecorder(Stage),  # and the first stage's input, the stem
    }

    def __init__(self, config: MobileViTv2Config):
        super().__init__(config, expand_output=False)
        self.num_features = list(config.stage_widths)

    @can_return_tuple
    @filter_output_hidden_states
    def forward(self, pixel_values: Tensor | None = None, **kwargs: Unpack[TransformersKwargs]) -> BackboneOutput:
        """pixel_values (B, C, H, W) -> feature_maps, each (B, C', H / stride, W / stride)"""
        outputs = MobileViTv2Model.forward(self, pixel_values, **kwargs)  # BackboneMixin has a forward too
        maps = dict(zip(self.stage_names, outputs.hidden_states, strict=True))
        return BackboneOutput(
            feature_maps=tuple(maps[name] for name in self.out_features),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
