"""The stages of MobileViTv2: inverted residuals, and MobileViTv2 blocks (Mehta & Rastegari 2022, Figure 6).

Names of weights are those of transformers' MobileViTV2.
"""

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from transformers.modeling_layers import GradientCheckpointingLayer

from ...attention import build_attention
from .configuration_mobilevit_v2 import MobileViTv2Config
from .convolution import ConvLayer, InvertedResidual
from .separable_attention import SeparableAttention
from .tokens import TokenNorm, fold, project, unfold


class FeedForward(nn.Module):
    """conv2(act(conv1(x))), 1×1 both."""

    def __init__(self, config: MobileViTv2Config, hidden_size: int):
        super().__init__()
        inner = max(16, int(config.ffn_multiplier * hidden_size) // 16 * 16)
        self.conv1 = ConvLayer(hidden_size, inner, bias=True, normalize=False, activation=config.hidden_act)
        self.conv2 = ConvLayer(inner, hidden_size, bias=True, normalize=False)
        self.dropout = nn.Dropout(config.ffn_dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, P, N, d) -> (B, P, N, d)"""
        hidden = self.conv1.activation(project(self.conv1, tokens))
        return project(self.conv2, self.dropout(hidden))


class TransformerLayer(nn.Module):
    """h = x + Attention(norm(x)), y = h + FFN(norm(h)), among the pixels of one place in all patches."""

    def __init__(self, config: MobileViTv2Config, stage: int, index: int):
        super().__init__()
        width, self.grid = config.attention_widths[stage - 3], config.grid(stage)
        self.layernorm_before = TokenNorm(width, config.layer_norm_eps)
        if config.attention == "separable":
            self.attention = SeparableAttention(
                width, config.patch_shape, config.num_latent_tokens, dropout=config.attn_dropout
            )
        else:
            options = config.options_of_layer(stage, index)
            self.attention = build_attention(config.attention, width, config.num_attention_heads, **options)
        self.layernorm_after = TokenNorm(width, config.layer_norm_eps)
        self.ffn = FeedForward(config, width)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, tokens: Tensor, grid: tuple[int, int], output_attentions: bool = False) -> Tensor:
        """(B, P, N, d) -> (B, P, N, d)"""
        attended = self.attend(self.layernorm_before(tokens), grid, output_attentions)
        tokens = tokens + self.dropout(attended)
        return tokens + self.dropout(self.ffn(self.layernorm_after(tokens)))

    def attend(self, tokens: Tensor, grid: tuple[int, int], output_attentions: bool) -> Tensor:
        if isinstance(self.attention, SeparableAttention):
            return self.attention(tokens, grid, output_attentions).hidden_states
        folded, where = tokens.flatten(0, 1), {"grid": grid, "output_attentions": output_attentions}  # (B · P, N, d)
        if grid == self.grid:
            output = self.attention(folded, **where)
        else:
            tables = self.attention.resampled(self.grid, grid, num_prefix_tokens=0)
            output = functional_call(self.attention, tables, (folded,), where)
        return output.hidden_states.view_as(tokens)


class Transformer(nn.Module):
    def __init__(self, config: MobileViTv2Config, stage: int):
        super().__init__()
        before = sum(config.n_attn_blocks[: stage - 3])
        self.layer = nn.ModuleList(
            TransformerLayer(config, stage, before + index) for index in range(config.n_attn_blocks[stage - 3])
        )

    def forward(self, tokens: Tensor, grid: tuple[int, int], output_attentions: bool = False) -> Tensor:
        for layer in self.layer:
            tokens = layer(tokens, grid, output_attentions)
        return tokens


class Stage(GradientCheckpointingLayer):
    """A part of the encoder whose output is one of its hidden states: (B, C, H, W) -> (B, C', H', W')"""


class MobileNetStage(Stage):
    """Inverted residuals only."""

    def __init__(self, config: MobileViTv2Config, in_channels: int, out_channels: int, stride: int, num_layers: int):
        super().__init__()
        self.layer = nn.ModuleList(
            InvertedResidual(config, out_channels if index else in_channels, out_channels, 1 if index else stride)
            for index in range(num_layers)
        )

    def forward(self, features: Tensor, output_attentions: bool = False) -> Tensor:
        for layer in self.layer:
            features = layer(features)
        return features


class MobileViTv2Stage(Stage):
    """An inverted residual with stride 2, then a MobileViTv2 block: convolutions look near, attention far."""

    def __init__(self, config: MobileViTv2Config, stage: int):
        super().__init__()
        in_channels, channels = config.stage_widths[stage - 1 : stage + 1]
        width = config.attention_widths[stage - 3]
        before, after = config.dilations[stage - 3]
        self.patch, self.odd_map = config.patch_shape, config.odd_map
        self.downsampling_layer = InvertedResidual(
            config, in_channels, channels, stride=2 if before == after else 1, dilation=before
        )
        self.conv_kxk = ConvLayer(
            channels,
            channels,
            config.conv_kernel_size,
            groups=channels,
            dilation=after if config.dilate_conv_kxk else 1,
            activation=config.hidden_act,
        )
        self.conv_1x1 = ConvLayer(channels, width, normalize=False)
        self.transformer = Transformer(config, stage)
        self.layernorm = TokenNorm(width, config.layer_norm_eps)
        self.conv_projection = ConvLayer(width, channels)

    def forward(self, features: Tensor, output_attentions: bool = False) -> Tensor:
        features = self.downsampling_layer(features)
        if self.odd_map == "cvnets":
            features = self.resize(features)
        features = self.conv_1x1(self.conv_kxk(features))
        whole = features.shape[2:]
        tokens, grid = unfold(self.crop(features), self.patch)
        tokens = self.layernorm(self.transformer(tokens, grid, output_attentions))
        features = fold(tokens, grid, self.patch)
        missing = whole[0] - features.shape[2], whole[1] - features.shape[3]
        if any(missing):
            features = F.pad(features, (0, missing[1], 0, missing[0]))
        return self.conv_projection(features)

    def resize(self, features: Tensor) -> Tensor:
        """To whole patches, as cvnets does; the stage's output keeps the new size."""
        size = [-(-side // patch) * patch for side, patch in zip(features.shape[2:], self.patch, strict=True)]
        if size == list(features.shape[2:]):
            return features
        return F.interpolate(features, size=size, mode="bilinear", align_corners=True)

    def crop(self, features: Tensor) -> Tensor:
        """What is whole patches, as transformers does."""
        rows, columns = (side // patch * patch for side, patch in zip(features.shape[2:], self.patch, strict=True))
        if not rows or not columns:
            raise ValueError(
                f"pixel_values are too small: a map of {tuple(features.shape[2:])} pixels is left, less than a patch "
                f"of {self.patch}; give larger images, or use odd_map='cvnets'."
            )
        return features[:, :, :rows, :columns]


class MobileViTv2Encoder(nn.Module):
    def __init__(self, config: MobileViTv2Config):
        super().__init__()
        stem, first, second = config.stage_widths[:3]
        self.layer = nn.ModuleList(
            [
                MobileNetStage(config, stem, first, stride=1, num_layers=1),
                MobileNetStage(config, first, second, stride=2, num_layers=2),
                *(MobileViTv2Stage(config, stage) for stage in (3, 4, 5)),
            ]
        )

    def forward(self, features: Tensor, output_attentions: bool = False) -> Tensor:
        for layer in self.layer:
            features = layer(features, output_attentions)
        return features
