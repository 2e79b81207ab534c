"""Small MobileViTv2 models, transformers' own beside ours, and the block in its slow obvious form."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import MobileViTV2Config

from hf_efficient.models.mobilevit_v2.configuration_mobilevit_v2 import MobileViTv2Config

SIZES = {
    "width_multiplier": 0.25,
    "n_attn_blocks": [1, 2, 1],
    "base_attn_unit_dims": [64, 96, 64],
    "aspp_out_channels": 16,
    "image_size": 64,
}


def tiny(**fields) -> MobileViTv2Config:
    return MobileViTv2Config(**{**SIZES, "num_labels": 5, "psp_out_channels": 16, **fields})


def theirs(model_class, **fields) -> nn.Module:
    """A model of transformers', whose own initialisation would hide any fault behind zeros."""
    return stirred(model_class(MobileViTV2Config(**{**SIZES, "num_labels": 5, **fields})))


@torch.no_grad()
def stirred(model: nn.Module) -> nn.Module:
    """In evaluation mode, with weights and statistics as after some training."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.3)
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def naive_block(stage: nn.Module, features: torch.Tensor, num_latent_tokens: int = 1) -> torch.Tensor:
    """What follows the downsampling in a stage, as the paper says it: unfold, attention on (B, d, P, N), fold."""
    features = stage.conv_kxk(features)
    features = F.conv2d(features, stage.conv_1x1.convolution.weight)
    size, width = features.shape[2:], features.shape[1]
    x = F.unfold(features, 2, stride=2).reshape(len(features), width, 4, -1)  # (B, d, P, N)
    for layer in stage.transformer.layer:
        x = x + naive_attention(layer.attention, layer.layernorm_before, x, num_latent_tokens)
        hidden = conv_1x1(layer.ffn.conv1, group_norm(layer.layernorm_after, x))
        x = x + conv_1x1(layer.ffn.conv2, F.silu(hidden))
    x = group_norm(stage.layernorm, x)
    features = F.fold(x.reshape(len(x), width * 4, -1), size, 2, stride=2)
    projected = F.conv2d(features, stage.conv_projection.convolution.weight)
    return stage.conv_projection.normalization(projected)


def naive_attention(attention, norm, x, num_latent_tokens):
    width = x.shape[1]
    qkv = conv_1x1(attention.qkv_proj, group_norm(norm, x))
    query, key, value = qkv.split([num_latent_tokens, width, width], 1)
    scores = query.softmax(-1)  # (B, L, P, N)
    groups = zip(scores.unbind(1), key.chunk(num_latent_tokens, 1), strict=True)
    context = torch.cat([(s.unsqueeze(1) * k).sum(-1, keepdim=True) for s, k in groups], 1)  # (B, d, P, 1)
    return conv_1x1(attention.out_proj, value.relu() * context)


def conv_1x1(layer, x):
    return F.conv2d(x, layer.convolution.weight, layer.convolution.bias)


def group_norm(norm, x):
    mean, variance = x.mean((1, 2, 3), keepdim=True), x.var((1, 2, 3), keepdim=True, correction=0)
    scale, shift = (p.view(1, -1, 1, 1) for p in (norm.weight, norm.bias))
    return (x - mean) / (variance + norm.eps).sqrt() * scale + shift
