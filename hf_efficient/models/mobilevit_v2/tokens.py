"""Tokens of a MobileViTv2 block: (B, P, N, d), for each of the P places in a patch the pixels of all N patches.

Cutting a map into tokens and joining them are one copy each; attention among the pixels of a place needs no other.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from ...attention.bypass import can_bypass
from .convolution import ConvLayer, PointwiseConv2d


def unfold(features: Tensor, patch: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """A map (B, d, H, W) -> tokens (B, P, N, d), and rows and columns of patches."""
    batch, width, rows, columns = features.shape
    grid = rows // patch[0], columns // patch[1]
    cells = features.permute(0, 2, 3, 1).reshape(batch, grid[0], patch[0], grid[1], patch[1], width)
    tokens = cells.permute(0, 2, 4, 1, 3, 5).reshape(batch, patch[0] * patch[1], grid[0] * grid[1], width)
    return tokens, grid


def fold(tokens: Tensor, grid: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """Tokens (B, P, N, d) -> a map (B, d, H, W)"""
    batch, _, _, width = tokens.shape
    cells = tokens.reshape(batch, *patch, *grid, width).permute(0, 3, 1, 4, 2, 5)
    return cells.reshape(batch, grid[0] * patch[0], grid[1] * patch[1], width).permute(0, 3, 1, 2)


class TokenNorm(nn.GroupNorm):
    """GroupNorm with one group: a sample's tokens (P, N, d) are standardised together, then each channel is scaled."""

    def __init__(self, channels: int, eps: float):
        super().__init__(1, channels, eps=eps)

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # channels_last has a kernel of its own


def project(layer: ConvLayer, tokens: Tensor) -> Tensor:
    """The 1×1 convolution of `layer` on tokens (B, P, N, d)"""
    convolution = layer.convolution
    if can_bypass(convolution, PointwiseConv2d):
        return F.linear(tokens, convolution.weight.flatten(1), convolution.bias)
    return convolution(tokens.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
