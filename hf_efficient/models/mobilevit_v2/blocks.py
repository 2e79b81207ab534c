"""The stages of MobileViTv2: inverted residuals, and MobileViTv2 blocks (Mehta & Rastegari 2022, Figure 6), or those
of its first version.

Names of weights are those of transformers' MobileViTV2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from transformers.modeling_layers import GradientCheckpointingLayer

from ...attention import build_attention
from ...layers.block import MLP
from .configuration_mobilevit_v2 import MobileViTv2Config
from .convolution import ConvLayer, InvertedResidual
from .sampling import TokenSampling
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


def token_norm(config: MobileViTv2Config, width: int) -> nn.Module:
    """Of all tokens of a sample together; in the first version of each by itself."""
    return (nn.LayerNorm if config.block == "v1" else TokenNorm)(width, eps=config.layer_norm_eps)


class TransformerLayer(nn.Module):
    """h = x + Attention(norm(x)), y = h + FFN(norm(h)), among the pixels of one place in all patches."""

    def __init__(self, config: MobileViTv2Config, stage: int, index: int):
        super().__init__()
        width, self.grid = config.attention_widths[stage - 3], config.grid(stage)
        self.layernorm_before = token_norm(config, width)
        if config.attention == "separable":
            self.attention = SeparableAttention(
                width, config.chosen_patch, config.num_latent_tokens, dropout=config.attn_dropout
            )
        else:
            options = config.options_of_layer(stage, index)
            self.attention = build_attention(config.attention, width, config.num_attention_heads, **options)
        self.layernorm_after = token_norm(config, width)
        if config.block == "v1":
            self.ffn = MLP(width, int(config.ffn_multiplier * width), config.hidden_act)
        else:
            self.ffn = FeedForward(config, width)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        tokens: Tensor,
        grid: tuple[int, int],
        output_attentions: bool = False,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """(B, P, N, d) -> (B, P, N, d)"""
        attended = self.attend(self.layernorm_before(tokens), grid, output_attentions, position_ids)
        tokens = tokens + self.dropout(attended)
        return tokens + self.dropout(self.ffn(self.layernorm_after(tokens)))

    def attend(self, tokens: Tensor, grid: tuple[int, int], output_attentions: bool, position_ids=None) -> Tensor:
        if isinstance(self.attention, SeparableAttention):
            return self.attention(tokens, grid, output_attentions).hidden_states
        folded, where = tokens.flatten(0, 1), {"grid": grid, "output_attentions": output_attentions}  # (B · P, N, d)
        if position_ids is not None:
            where["position_ids"] = position_ids.repeat_interleave(tokens.shape[1], 0)
        if grid == self.grid:
            output = self.attention(folded, **where)
        else:
            tables = self.attention.resampled(self.grid, grid, num_prefix_tokens=0)
            output = functional_call(self.attention, tables, (folded,), where)
        return output.hidden_states.view_as(tokens)


class Transformer(nn.Module):
    """The layers of a stage, for all tokens or for those that `config.sampling` chooses."""

    def __init__(self, config: MobileViTv2Config, stage: int):
        super().__init__()
        before = sum(config.n_attn_blocks[: stage - 3])
        self.layer = nn.ModuleList(
            TransformerLayer(config, stage, before + index) for index in range(config.n_attn_blocks[stage - 3])
        )
        self.sampling = TokenSampling(**config.sampling, patch=config.patch_shape) if config.sampling else None

    def forward(self, tokens: Tensor, grid: tuple[int, int], output_attentions: bool = False) -> Tensor:
        if self.sampling is None:
            return self.run(tokens, grid, output_attentions)
        chosen = self.sampling.choose(tokens, grid)
        if output_attentions and chosen.index is not None and isinstance(self.layer[0].attention, SeparableAttention):
            raise ValueError(
                f"output_attentions: the tokens that sampling.method={self.sampling.method!r} chooses make no map of "
                "context scores; 'uniform' does."
            )
        results = self.run(chosen.tokens, chosen.grid, output_attentions, chosen.position_ids)
        return self.sampling.spread(tokens, grid, chosen, results)

    def run(self, tokens: Tensor, grid: tuple[int, int], output_attentions: bool, position_ids=None) -> Tensor:
        for layer in self.layer:
            tokens = layer(tokens, grid, output_attentions, position_ids)
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
        first = config.block == "v1"
        in_channels, channels = config.stage_widths[stage - 1 : stage + 1]
        width = config.attention_widths[stage - 3]
        before, after = config.dilations[stage - 3]
        keeps_size = before != after
        if not config.dilate:
            before = after = 1
        self.patch, self.odd_map = config.patch_shape, config.odd_map
        self.downsampling_layer = InvertedResidual(
            config, in_channels, channels, stride=1 if keeps_size else 2, dilation=before
        )
        self.conv_kxk = ConvLayer(
            channels,
            channels,
            config.conv_kernel_size,
            groups=1 if first else channels,
            dilation=after if config.dilate_conv_kxk else 1,
            activation=config.hidden_act,
        )
        self.conv_1x1 = ConvLayer(channels, width, normalize=False)
        self.transformer = Transformer(config, stage)
        self.layernorm = token_norm(config, width)
        self.conv_projection = ConvLayer(width, channels, activation=config.hidden_act if first else None)

    def forward(self, features: Tensor, output_attentions: bool = False) -> Tensor:
        features = self.downsampling_layer(features)
        if self.odd_map == "cvnets":
            features = self.resize(features)
        features = self.conv_1x1(self.conv_kxk(features))
        whole = features.shape[2:]
        features = self.look_around(self.crop(features), output_attentions)
        missing = whole[0] - features.shape[2], whole[1] - features.shape[3]
        if any(missing):
            features = F.pad(features, (0, missing[1], 0, missing[0]))
        return self.conv_projection(features)

    def look_around(self, features: Tensor, output_attentions: bool) -> Tensor:
        """The transformer on a map of whole patches."""
        tokens, grid = unfold(features, self.patch)
        tokens = self.layernorm(self.transformer(tokens, grid, output_attentions))
        return fold(tokens, grid, self.patch)

    def whole_patches(self, size: tuple[int, int]) -> tuple[int, int]:
        """The size, or the next larger one that patches divide."""
        return tuple(-(-side // patch) * patch for side, patch in zip(size, self.patch, strict=True))

    def resize(self, features: Tensor) -> Tensor:
        """To whole patches, as cvnets does; the stage's output keeps the new size."""
        size = self.whole_patches(features.shape[2:])
        if size == tuple(features.shape[2:]):
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


class MobileViTv1Stage(MobileViTv2Stage):
    """With the block of MobileViT (Mehta & Rastegari 2021, Figure 1b): `conv_kxk` is no depthwise one, every token is
    normalised by itself, and a last convolution sees the block's input beside what attention made of it. A map that is
    no multiple of the patch is resized for the transformer only, as cvnets and transformers do.
    """

    def __init__(self, config: MobileViTv2Config, stage: int):
        super().__init__(config, stage)
        channels = config.stage_widths[stage]
        self.fusion = ConvLayer(2 * channels, channels, config.conv_kernel_size, activation=config.hidden_act)

    def forward(self, features: Tensor, output_attentions: bool = False) -> Tensor:
        before = self.downsampling_layer(features)
        features = self.conv_1x1(self.conv_kxk(before))
        size, whole = tuple(features.shape[2:]), self.whole_patches(features.shape[2:])
        if whole != size:
            features = F.interpolate(features, size=whole, mode="bilinear", align_corners=False)
        features = self.look_around(features, output_attentions)
        if whole != size:
            features = F.interpolate(features, size=size, mode="bilinear", align_corners=False)
        return self.fusion(torch.cat([before, self.conv_projection(features)], 1))


class MobileViTv2Encoder(nn.Module):
    def __init__(self, config: MobileViTv2Config):
        super().__init__()
        stem, first, second = config.stage_widths[:3]
        block = MobileViTv1Stage if config.block == "v1" else MobileViTv2Stage
        self.layer = nn.ModuleList(
            [
                MobileNetStage(config, stem, first, stride=1, num_layers=1),
                MobileNetStage(config, first, second, stride=2, num_layers=3 if config.block == "v1" else 2),
                *(block(config, stage) for stage in (3, 4, 5)),
            ]
        )

    def forward(self, features: Tensor, output_attentions: bool = False) -> Tensor:
        for layer in self.layer:
            features = layer(features, output_attentions)
        return features
