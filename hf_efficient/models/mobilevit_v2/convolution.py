"""Convolutions of MobileViTv2: maps are (B, C, H, W) in channels_last memory, so that 1×1 is one matrix product.

Names of weights are those of transformers' MobileViTV2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from .configuration_mobilevit_v2 import MobileViTv2Config, make_divisible


class PointwiseConv2d(nn.Conv2d):
    """A 1×1 convolution as a matrix product over the channels."""

    def forward(self, features: Tensor) -> Tensor:
        pixels = F.linear(features.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias)  # (B, H, W, C)
        return pixels.permute(0, 3, 1, 2)


class ConvLayer(nn.Module):
    """Convolution, BatchNorm, activation; the last two if asked for."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 1,
        stride: int = 1,
        groups: int = 1,
        dilation: int = 1,
        bias: bool = False,
        normalize: bool = True,
        activation: str | None = None,
    ):
        super().__init__()
        if kernel_size == stride == groups == 1:
            self.convolution = PointwiseConv2d(in_channels, out_channels, 1, bias=bias)
        else:
            padding = kernel_size // 2 * dilation
            self.convolution = nn.Conv2d(
                in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias=bias
            )
        self.normalization = nn.BatchNorm2d(out_channels) if normalize else None
        self.activation = ACT2FN[activation] if activation else None

    def forward(self, features: Tensor) -> Tensor:
        return self.finish(self.convolution(features))

    def finish(self, features: Tensor) -> Tensor:
        """What follows the convolution."""
        if self.normalization is not None:
            features = batch_norm(self.normalization, features)
        return features if self.activation is None else self.activation(features)


def batch_norm(norm: nn.Module, features: Tensor) -> Tensor:
    """`norm(features)`, which counts a batch once though a checkpointed stage sees it again in the backward pass."""
    plain = norm.training and type(norm) is nn.BatchNorm2d and not torch.compiler.is_compiling()
    if plain and torch._C._current_graph_task_id() != -1:  # in a backward pass
        statistics = norm.running_mean.clone(), norm.running_var.clone()
        return F.batch_norm(features, *statistics, norm.weight, norm.bias, training=True, eps=norm.eps)
    return norm(features)


class InvertedResidual(nn.Module):
    """MobileNetV2's block (Sandler et al. 2018): 1×1 to `expand_ratio` times the channels, depthwise 3×3, 1×1 back."""

    def __init__(self, config: MobileViTv2Config, in_channels: int, out_channels: int, stride: int, dilation: int = 1):
        super().__init__()
        expanded = make_divisible(round(in_channels * config.expand_ratio), 8)
        self.use_residual = stride == 1 and in_channels == out_channels
        self.expand_1x1 = ConvLayer(in_channels, expanded, activation=config.hidden_act)
        self.conv_3x3 = ConvLayer(
            expanded, expanded, 3, stride, groups=expanded, dilation=dilation, activation=config.hidden_act
        )
        self.reduce_1x1 = ConvLayer(expanded, out_channels)

    def forward(self, features: Tensor) -> Tensor:
        output = self.reduce_1x1(self.conv_3x3(self.expand_1x1(features)))
        return features + output if self.use_residual else output
