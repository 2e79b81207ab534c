"""Softmax attention (Vaswani et al. 2017): A = softmax(q kᵀ / √D), o = A v, by PyTorch's fused kernel."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..linear.state import State
from .base import Attention
from .masking import allowed_keys, masked_softmax, zero_masked
from .registry import register_attention


@register_attention
class Softmax(Attention):
    """The quadratic baseline, exact and fused. Its state is a KV cache, which grows with the tokens seen."""

    paper = "Vaswani 2017"
    cost = "N²D"
    parameter_free = True
    supports_causal = True
    supports_cross = True

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        dropout = self.dropout if self.training else 0.0
        return softmax_attention(q, k, v, causal=self.causal, key_mask=key_mask, dropout=dropout)

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        logits = (q if rows is None else q[:, :, rows]) @ zero_masked(k, key_mask).mT * self.head_dim**-0.5
        return masked_softmax(logits, allowed_keys(k.shape[2], self.causal, key_mask, rows, k.device))

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        return empty_cache(batch_size, self.num_heads, self.head_dim, device, dtype)

    def extend(self, q, k, v, state, key_mask=None):
        state = extend_cache(state, k, v, key_mask)
        return cached_attention(q, state, dropout=self.dropout if self.training else 0.0), state

    def absorb(self, k, v, state, key_mask=None):
        return extend_cache(state, k, v, key_mask)


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
    scale: float | Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(scale·q kᵀ + key_bias) v without an N×N tensor; key_bias broadcastable to (B, H, N), differentiable.

    A bias per key (a causal mask together with padding is one too) rides along as an extra channel, q̃ = [q, 1] and
    k̃ = [scale·k, bias], so that the fused kernel stays available.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if key_mask is not None:
        k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    if key_bias is None and not isinstance(scale, Tensor) and (key_mask is None or not causal):
        mask = None if key_mask is None else _shut(key_mask, q.dtype)[:, None, None, :]
        output = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal, scale=scale)
        return output if key_mask is None else _zero_rows(output, key_mask, causal)
    bias = q.new_zeros(()) if key_bias is None else key_bias.to(q.dtype)
    if key_mask is not None:
        bias = torch.where(key_mask[:, None], bias, _shut(key_mask, q.dtype)[:, None])
    width = -(-(q.shape[-1] + 1) // 8) * 8
    bias = bias.expand(k.shape[:3]).unsqueeze(-1)
    q = F.pad(torch.cat([q, torch.ones_like(q[..., :1])], -1), (0, width - q.shape[-1] - 1))
    k = F.pad(torch.cat([k * scale, bias], -1), (0, width - k.shape[-1] - 1))
    output = F.scaled_dot_product_attention(
        q, k, F.pad(v, (0, width - v.shape[-1])), dropout_p=dropout, is_causal=causal, scale=1.0
    )[..., : v.shape[-1]]
    return output if key_mask is None else _zero_rows(output, key_mask, causal)


def _shut(key_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 for real keys, and for masked ones a number whose exponential is 0, finite so that no row becomes NaN."""
    return torch.zeros_like(key_mask, dtype=dtype).masked_fill(~key_mask, torch.finfo(dtype).min / 4)


def _zero_rows(output: Tensor, key_mask: Tensor, causal: bool) -> Tensor:
    """Queries that see no key output 0."""
    seen = key_mask.cumsum(-1) > 0 if causal else key_mask.any(-1, keepdim=True)
    return output.masked_fill(~seen[:, None, :, None], 0)


# The KV cache, for causal mechanisms whose weights are a softmax over all keys seen.


def empty_cache(batch_size: int, heads: int, key_dim: int, device, dtype, value_dim: int | None = None) -> State:
    """k (B, H, T, D), v (B, H, T, Dv) and mask (B, T), with T = 0."""
    return {
        "k": torch.zeros(batch_size, heads, 0, key_dim, device=device, dtype=dtype),
        "v": torch.zeros(batch_size, heads, 0, value_dim or key_dim, device=device, dtype=dtype),
        "mask": torch.zeros(batch_size, 0, device=device, dtype=torch.bool),
    }


def extend_cache(state: State, k: Tensor, v: Tensor, key_mask: Tensor | None) -> State:
    if key_mask is None:
        key_mask = torch.ones(k.shape[0], k.shape[2], device=k.device, dtype=torch.bool)
    return {
        "k": torch.cat([state["k"].to(k.dtype), zero_masked(k, key_mask)], 2),
        "v": torch.cat([state["v"].to(v.dtype), zero_masked(v, key_mask)], 2),
        "mask": torch.cat([state["mask"], key_mask], 1),
    }


def cached_attention(
    q: Tensor, state: State, key_bias: Tensor | None = None, scale: float | Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """The last N tokens' queries against a cache that already holds their keys."""
    k, v = state["k"], state["v"]
    total, new = k.shape[2], q.shape[2]
    rows = torch.arange(total - new, total, device=q.device)
    allowed = allowed_keys(total, True, state["mask"], rows, q.device)
    seen = allowed.any(-1, keepdim=True)
    if key_bias is None and not isinstance(scale, Tensor):
        # Finite, so that a row which sees nothing becomes 0 below and not NaN in the backward pass.
        mask = torch.zeros_like(allowed, dtype=q.dtype).masked_fill(~allowed, torch.finfo(q.dtype).min / 4)
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scale).masked_fill(~seen, 0)
    logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if key_bias is not None:
        logits = logits + key_bias.unsqueeze(-2)
    weights = F.dropout(masked_softmax(logits, allowed), dropout)
    return (weights @ v).masked_fill(~seen, 0)


def squared_distance(q: Tensor, k: Tensor) -> Tensor:
    """‖q_i − k_j‖², (..., N, D) x (..., M, D) -> (..., N, M): the score of Gaussian kernels"""
    return q.square().sum(-1, keepdim=True) - 2 * q @ k.mT + k.square().sum(-1).unsqueeze(-2)
