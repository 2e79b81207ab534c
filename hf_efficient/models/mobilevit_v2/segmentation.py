"""Segmentation heads: DeepLabv3 (Chen et al. 2017), PSPNet (Zhao et al. 2017) and the auxiliary head for training.

Each makes of the last map (B, C, H, W) logits (B, classes, H, W). DeepLabv3's weights are named as in transformers'
MobileViTV2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .configuration_mobilevit_v2 import MobileViTv2Config
from .convolution import ConvLayer


class ASPPPooling(nn.Module):
    """The mean of the map, through a 1×1 convolution, at every pixel."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.conv_1x1 = ConvLayer(in_channels, out_channels, activation="relu")

    def forward(self, features: Tensor) -> Tensor:
        pooled = self.conv_1x1(features.mean((2, 3), keepdim=True))
        return pooled.expand(-1, -1, *features.shape[2:])


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling: 1×1, three dilated 3×3 convolutions and the mean, side by side, then 1×1."""

    def __init__(self, config: MobileViTv2Config):
        super().__init__()
        in_channels, channels = config.stage_widths[-1], config.aspp_out_channels
        self.convs = nn.ModuleList(
            [
                ConvLayer(in_channels, channels, activation="relu"),
                *(ConvLayer(in_channels, channels, 3, dilation=r, activation="relu") for r in config.atrous_rates),
                ASPPPooling(in_channels, channels),
            ]
        )
        self.project = ConvLayer(5 * channels, channels, activation="relu")
        self.dropout = nn.Dropout2d(config.aspp_dropout_prob)

    def forward(self, features: Tensor) -> Tensor:
        return self.dropout(self.project(torch.cat([conv(features) for conv in self.convs], 1)))


class DeepLabV3(nn.Module):
    def __init__(self, config: MobileViTv2Config):
        super().__init__()
        self.aspp = ASPP(config)
        self.classifier = ConvLayer(config.aspp_out_channels, config.num_labels, bias=True, normalize=False)

    def forward(self, features: Tensor) -> Tensor:
        return self.classifier(self.aspp(features))


class PSPNet(nn.Module):
    """Means over grids of 1, 2, 3 and 6 cells a side, each through a 1×1 convolution, beside the map; then 3×3."""

    def __init__(self, config: MobileViTv2Config):
        super().__init__()
        in_channels, pool_sizes = config.stage_widths[-1], config.psp_pool_sizes
        reduced = max(16, in_channels // len(pool_sizes) // 16 * 16)
        self.pool_sizes = tuple(pool_sizes)
        self.branches = nn.ModuleList(ConvLayer(in_channels, reduced, activation="relu") for _ in pool_sizes)
        joined = in_channels + reduced * len(pool_sizes)
        self.fusion = ConvLayer(joined, config.psp_out_channels, 3, activation="relu")
        self.dropout = nn.Dropout2d(config.classifier_dropout_prob)
        self.classifier = ConvLayer(config.psp_out_channels, config.num_labels, bias=True, normalize=False)

    def forward(self, features: Tensor) -> Tensor:
        pyramid = [features]
        for size, branch in zip(self.pool_sizes, self.branches, strict=True):
            pooled = branch(F.adaptive_avg_pool2d(features, size))
            pyramid.append(F.interpolate(pooled, size=features.shape[2:], mode="bilinear", align_corners=True))
        return self.classifier(self.dropout(self.fusion(torch.cat(pyramid, 1))))


class AuxiliaryHead(nn.Module):
    """A small head on stage 4, whose loss helps training."""

    def __init__(self, config: MobileViTv2Config):
        super().__init__()
        channels = config.stage_widths[4]
        inner = max(channels // 4, 128)
        self.conv_3x3 = ConvLayer(channels, inner, 3, activation="relu")
        self.dropout = nn.Dropout2d(config.classifier_dropout_prob)
        self.classifier = ConvLayer(inner, config.num_labels, bias=True, normalize=False)

    def forward(self, features: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.conv_3x3(features)))


SEGMENTATION_HEADS = {"deeplabv3": DeepLabV3, "pspnet": PSPNet}
