"""Efficient attention (Shen et al. 2021): o = softmax_D(q)·(softmax_N(k)ᵀ v), no scale, no parameters.

Row i of its matrix is Σ_d p_id ρ_jd with p = softmax over the features of q_i and ρ = softmax over the tokens of k,
and sums to 1 by itself. Causal, ρ is normalised over each prefix (see `prefix_softmax.py`).
"""

import torch
import torch.nn.functional as F

from ..linear.autocast import without_autocast
from ..linear.prefix_softmax import pooled_attention, prefix_attention, prefix_softmax_state, prefix_step
from .base import Attention
from .masking import allowed_keys, masked_softmax, zero_masked
from .registry import register_attention


@register_attention
class Efficient(Attention):
    """State: S (B, H, D, Dv), c and z (B, H, D)."""

    paper = "Shen 2021"
    cost = "ND²"
    parameter_free = True
    supports_causal = True
    supports_cross = True
    supports_recurrent = True

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        if self.causal:
            state = self.initial_state(q.shape[0], q.device, torch.promote_types(q.dtype, torch.float32))
            return self.extend(q, k, v, state, key_mask)[0]
        with without_autocast(q):
            dtype, wide = v.dtype, torch.promote_types(v.dtype, torch.float32)
            v = zero_masked(v, key_mask).to(wide)
            if self.training and self.dropout:  # whole keys go, as in every linear mechanism
                v = v * F.dropout(v.new_ones(*v.shape[:3], 1), self.dropout)
            return pooled_attention(q.to(wide).softmax(-1), zero_masked(k, key_mask).to(wide), v, key_mask).to(dtype)

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        p = (q if rows is None else q[:, :, rows]).softmax(-1)  # (B, H, S, D)
        k = zero_masked(k, key_mask)
        if not self.causal:
            k = k if key_mask is None else k.masked_fill(~key_mask[:, None, :, None], -torch.inf)
            rho = k.softmax(2).nan_to_num(0)
            return p @ rho.mT
        allowed = allowed_keys(k.shape[2], True, key_mask, rows, k.device)  # (·, 1, S, N)
        matrix = 0
        for d in range(self.head_dim):
            matrix = matrix + p[..., d, None] * masked_softmax(k[..., d].unsqueeze(-2), allowed)
        return matrix

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        return prefix_softmax_state(batch_size, self.num_heads, self.head_dim, self.head_dim, device, dtype)

    def extend(self, q, k, v, state, key_mask=None):
        with without_autocast(q):
            wide = state["S"].dtype
            keep = None
            if self.training and self.dropout:
                keep = F.dropout(torch.ones(q.shape[:3], device=q.device, dtype=wide), self.dropout)
            log_p, k = q.to(wide).log_softmax(-1), zero_masked(k, key_mask).to(wide)
            output, state = prefix_attention(log_p, k, zero_masked(v, key_mask).to(wide), state, key_mask, keep)
            return output.to(v.dtype), state

    def step(self, q, k, v, state):
        if q.dim() == 3 or (torch.is_grad_enabled() and q.requires_grad) or self.training:
            return super().step(q, k, v, state)
        wide = state["S"].dtype
        output, state = prefix_step(q.to(wide).log_softmax(-1), k.to(wide), v.to(wide), state)
        return output.to(v.dtype), state
