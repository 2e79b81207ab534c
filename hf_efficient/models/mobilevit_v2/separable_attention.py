"""Separable self-attention on the tokens of a MobileViTv2 block, with the weights of transformers' MobileViTV2."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...attention.base import AttentionOutput
from ...attention.bypass import can_bypass
from .convolution import ConvLayer, PointwiseConv2d
from .tokens import fold, project


class SeparableAttention(nn.Module):
    """`hf_efficient.attention.separable` among the N pixels of each place in the patches:

        cs = softmax over N of x w_I,    y = (relu(x W_V) ⊙ Σ_n cs_n x_n W_K) W_O

    The rows of `qkv_proj` are [I (L) | K (d) | V (d)]. Keys are never computed: tokens are pooled, then projected.
    """

    def __init__(self, hidden_size: int, patch: tuple[int, int], num_latent_tokens: int = 1, dropout: float = 0.0):
        super().__init__()
        self.hidden_size, self.patch, self.num_latent_tokens = hidden_size, patch, num_latent_tokens
        self.sizes = [num_latent_tokens, hidden_size, hidden_size]
        self.qkv_proj = ConvLayer(hidden_size, sum(self.sizes), bias=True, normalize=False)
        self.qkv_proj.convolution.output_sizes = self.sizes  # for optimizers of whole matrices
        self.out_proj = ConvLayer(hidden_size, hidden_size, bias=True, normalize=False)
        self.attn_dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, grid: tuple[int, int], output_attentions: bool = False) -> AttentionOutput:
        """(B, P, N, d) -> (B, P, N, d), and with output_attentions cs as maps (B, L, H, W)"""
        plain = can_bypass(self.qkv_proj.convolution, PointwiseConv2d)
        scores, context, values = self.pool_and_project(tokens) if plain else self.project_and_pool(tokens)
        output = project(self.out_proj, values * context)
        return AttentionOutput(output, fold(scores, grid, self.patch) if output_attentions else None)

    def pool_and_project(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """cs (B, P, N, L), context (B, P, 1, d), relu of the values (B, P, N, d)"""
        convolution = self.qkv_proj.convolution
        query, key, value = convolution.weight.flatten(1).split(self.sizes)
        query_bias, key_bias, value_bias = convolution.bias.split(self.sizes)
        scores = F.linear(tokens, query, query_bias).softmax(2)
        dropped = self.attn_dropout(scores)
        pooled = dropped.mT @ tokens  # (B, P, L, d)
        if self.training and self.attn_dropout.p:  # what is left of cs does not sum to 1: so much bias is pooled
            key_bias = key_bias * self.spread(dropped.sum(2, keepdim=True))
        if self.num_latent_tokens == 1:
            context = F.linear(pooled, key) + key_bias
        else:
            groups = key.unflatten(0, (self.num_latent_tokens, -1))  # (L, d/L, d)
            context = torch.einsum("bpld,lgd->bplg", pooled, groups).flatten(2).unsqueeze(2) + key_bias
        return scores, context, F.linear(tokens, value, value_bias).relu_()

    def project_and_pool(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same, as the paper writes it; adapters around `qkv_proj` see every token."""
        queries, keys, values = project(self.qkv_proj, tokens).split(self.sizes, -1)
        scores = queries.softmax(2)
        context = (self.spread(self.attn_dropout(scores)) * keys).sum(2, keepdim=True)
        return scores, context, F.relu(values)

    def spread(self, scores: Tensor) -> Tensor:
        """(..., L) -> (..., d) or (..., 1): for each channel the score of its group."""
        if self.num_latent_tokens == 1:
            return scores
        return scores.repeat_interleave(self.hidden_size // self.num_latent_tokens, -1)
