"""Mixture of Gaussian keys, MGK (Nguyen et al. 2022): every token offers R keys.

    A_ij ∝ Σ_r π_r σ_r^{-D} exp(−‖q_i − k_jr‖² / 2σ_r²)

with k_jr = k_j − b_r (`keys="shift"`) or projections of their own ("multi"). σ² = √D, or learned. π (R, H) is a
softmax of learned logits; the public code's π per position breaks with the length. `mode="hard"` takes the largest
component instead of the sum; "em" keeps π in a buffer that moves to the mean responsibility in training.
O(R·N²D): the saving is that fewer heads do. R = 1 is softmax attention only for keys of equal norm.

`linear=True` is MLK: kernel attention with φ(k_j) = Σ_r π_r (elu(k_jr) + 1), whose features add up. O(N·D²).
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..linear.chunked import kernel_attention
from ..linear.literal import literal_weights
from ..linear.state import initial_state
from .base import Attention, check_choice, check_positive, linear
from .masking import allowed_keys, zero_masked
from .registry import register_attention
from .softmax import empty_cache, extend_cache, softmax_attention, squared_distance

QUERY_BLOCK = 512  # rows of the score matrix that exist at a time


@register_attention
class GaussianMixture(Attention):
    """
    Args:
        num_keys: R.
        keys: "shift" or "multi".
        mode: "soft", "hard" or "em".
        learn_variance: σ² (R, H) by a softplus, instead of √D.
        em_rate: η of the "em" update.
        linear: MLK.
    """

    paper = "Nguyen 2022"
    cost = "RN²D"
    supports_causal = True
    supports_cross = True

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_keys: int = 2,
        keys: str = "shift",
        mode: str = "soft",
        learn_variance: bool = False,
        em_rate: float = 0.1,
        linear: bool = False,
        **common,
    ):
        check_positive("num_keys", num_keys)
        check_choice("keys", keys, ("shift", "multi"))
        check_choice("mode", mode, ("soft", "hard", "em"))
        check_choice("learn_variance", learn_variance, (False, True))
        check_choice("linear", linear, (False, True))
        if not isinstance(em_rate, (int, float)) or not 0 < em_rate <= 1:
            raise ValueError(f"em_rate={em_rate!r} must lie in (0, 1].")
        if linear and (mode != "soft" or learn_variance):
            raise ValueError("linear=True adds features up: it needs mode='soft' and learn_variance=False.")
        self.num_keys, self.keys, self.mode, self.em_rate, self.linear = num_keys, keys, mode, em_rate, linear
        super().__init__(hidden_size, num_heads, **common)
        self.supports_recurrent = linear
        if keys == "multi":
            self.key_dim = num_keys * self.head_dim
        if keys == "shift" and num_keys > 1:
            self.shifts = nn.Parameter(torch.empty(num_keys - 1, num_heads, self.head_dim))
        if mode == "em":
            self.register_buffer("mixture", torch.empty(num_keys, num_heads))
        else:
            self.mixture_logits = nn.Parameter(torch.empty(num_keys, num_heads))
        if learn_variance:
            self.variance = nn.Parameter(torch.empty(num_keys, num_heads))  # before the softplus
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if hasattr(self, "shifts"):
            nn.init.normal_(self.shifts, std=0.5)
        if self.mode == "em":
            nn.init.constant_(self.mixture, 1 / self.num_keys)
        else:
            nn.init.zeros_(self.mixture_logits)
        if hasattr(self, "variance"):
            nn.init.constant_(self.variance, math.log(math.expm1(self.head_dim**0.5)))

    def build_projections(self, bias: bool, output_bias: bool) -> None:
        super().build_projections(bias, output_bias)
        if self.keys == "multi":
            self.k_proj = linear(self.hidden_size, self.num_heads * self.num_keys * self.head_dim, bias)

    def components(self, k: Tensor) -> Tensor:
        """k (B, H, N, D), or (B, H, N, R·D) with "multi" -> k_jr (B, H, N, R, D)"""
        if self.keys == "multi":
            return k.unflatten(-1, (self.num_keys, self.head_dim))
        if self.num_keys == 1:
            return k.unsqueeze(-2)
        shifts = torch.cat([torch.zeros_like(self.shifts[:1]), self.shifts]).transpose(0, 1)  # (H, R, D)
        return k.unsqueeze(-2) - shifts.to(k.dtype).unsqueeze(1)

    def log_mixture(self) -> Tensor:
        """log π (H, R)"""
        return (self.mixture.log() if self.mode == "em" else self.mixture_logits.log_softmax(0)).T

    def sigma2(self) -> Tensor:
        """σ² (H, R)"""
        if hasattr(self, "variance"):
            return F.softplus(self.variance).T
        return torch.full_like(self.log_mixture(), self.head_dim**0.5)

    def augmented(self, q: Tensor, components: Tensor) -> tuple[Tensor, Tensor]:
        """q̃ (B, H, N, D+2) and k̃ (B, H, N, R, D+2), whose products are the logits up to a constant per row."""
        sigma2 = self.sigma2().to(q.dtype)[:, None, :, None]  # (H, 1, R, 1)
        bias = self.log_mixture().to(q.dtype)[:, None, :, None] - self.head_dim / 2 * sigma2.log()
        bias = bias - components.square().sum(-1, keepdim=True) / (2 * sigma2)
        # −‖q‖²/2σ_r² is constant in a row only if all σ_r are equal: what differs goes along as a channel.
        rest = (1 / (2 * sigma2[:, :, :1]) - 1 / (2 * sigma2)).expand_as(bias)
        norm = q.square().sum(-1, keepdim=True)
        return torch.cat([q, norm, torch.ones_like(norm)], -1), torch.cat([components / sigma2, rest, bias], -1)

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
        if self.linear:
            return self.run_linear(q, k, v, key_mask)[0]
        components = self.components(k)
        self.learn_mixture(q, components, key_mask)
        return self.mix(*self.augmented(q, components), v, key_mask)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, start: int = 0) -> Tensor:
        """q̃ (B, H, N, ·) of tokens `start` onwards, k̃ (B, H, T, R, ·), v (B, H, T, Dv) -> (B, H, N, Dv)"""
        dropout = self.dropout if self.training else 0.0
        if self.mode != "hard" and not self.causal:
            mask = None if key_mask is None else key_mask.repeat_interleave(self.num_keys, 1)
            v = v.repeat_interleave(self.num_keys, 2)
            width = -(-max(q.shape[-1], v.shape[-1]) // 8) * 8  # the fused kernel wants equal widths
            q, k, padded = (F.pad(x, (0, width - x.shape[-1])) for x in (q, k.flatten(2, 3), v))
            mixed = softmax_attention(q, k, padded, key_mask=mask, scale=1.0, dropout=dropout)
            return mixed[..., : v.shape[-1]]
        blocks = []
        for a in range(0, q.shape[2], QUERY_BLOCK):
            rows = q[:, :, a : a + QUERY_BLOCK]
            end = start + a + rows.shape[2] if self.causal else k.shape[2]
            mask = None if key_mask is None else key_mask[:, :end]
            arguments = (rows, k[:, :, :end], v[:, :, :end], mask, start + a, dropout)
            needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in arguments[:3])
            run = (
                checkpoint(self.mix_rows, *arguments, use_reentrant=False) if needs_grad else self.mix_rows(*arguments)
            )
            blocks.append(run)
        return torch.cat(blocks, 2)

    def mix_rows(self, q, k, v, key_mask, start, dropout):
        """Some query rows, through their scores (B, H, rows, T)."""
        rows = torch.arange(start, start + q.shape[2], device=q.device)
        allowed = allowed_keys(k.shape[2], self.causal, key_mask, rows, q.device)
        logits = self.combine(torch.einsum("bhic,bhjrc->bhijr", q, k))
        if allowed is not None:
            logits = logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)
        weights = logits.softmax(-1)
        if allowed is not None:
            weights = weights * allowed
        return F.dropout(weights, dropout) @ v

    def combine(self, logits: Tensor) -> Tensor:
        return logits.amax(-1) if self.mode == "hard" else logits.logsumexp(-1)

    def learn_mixture(self, q: Tensor, components: Tensor, key_mask: Tensor | None) -> None:
        # Before π is used, and not while a checkpointed region is recomputed: it must see the π of its first run.
        if self.mode == "em" and self.training and torch._C._current_graph_task_id() == -1:
            self.update_mixture(q, components, key_mask)

    @torch.no_grad()
    def update_mixture(self, q: Tensor, components: Tensor, key_mask: Tensor | None) -> None:
        """π ← (1−η)π + η·mean of γ_ijr, the responsibility of component r within key j, over all valid i and j."""
        q, k = self.augmented(q, components)
        total, count = torch.zeros_like(self.mixture), torch.zeros((), device=q.device)
        for a in range(0, q.shape[2], QUERY_BLOCK):
            rows = torch.arange(a, min(a + QUERY_BLOCK, q.shape[2]), device=q.device)
            gamma = torch.einsum("bhic,bhjrc->bhijr", q[:, :, rows], k).softmax(-1)
            valid = allowed_keys(k.shape[2], self.causal, key_mask, rows, q.device)
            valid = torch.ones_like(gamma[:, :1, ..., 0]) if valid is None else valid.expand_as(gamma[:, :1, ..., 0])
            if key_mask is not None and q.shape[2] == k.shape[2]:  # its queries are padded as its keys are
                valid = valid & key_mask[:, None, rows, None]
            total += torch.einsum("bhijr,bij->rh", gamma.float(), valid[:, 0].float())
            count += valid.sum()
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(total)
            dist.all_reduce(count)
        self.mixture.mul_(1 - self.em_rate).add_(total / count.clamp_min(1), alpha=self.em_rate)
        self.mixture.div_(self.mixture.sum(0))

    def run_linear(self, q, k, v, key_mask, state=None):
        wide = torch.promote_types(q.dtype, torch.float32)
        phi = F.elu(self.components(k).to(wide)) + 1  # (B, H, N, R, D)
        phi_q, phi_k = F.elu(q.to(wide)) + 1, (self.log_mixture().exp().to(wide)[:, None, :, None] * phi).sum(-2)
        weight = key_mask
        if self.training and self.dropout:
            keep = F.dropout(torch.ones(k.shape[:3], device=k.device), self.dropout)
            weight = keep if key_mask is None else keep * key_mask.unsqueeze(1)
        return kernel_attention(phi_q, phi_k, v, causal=self.causal, state=state, key_weight=weight)

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        k = zero_masked(k, key_mask)
        allowed = allowed_keys(k.shape[2], self.causal, key_mask, rows, k.device)
        q = q if rows is None else q[:, :, rows]
        if self.linear:
            return literal_weights(*self.literal_features(q, k), allowed).to(q.dtype)
        densities = []
        for r in range(self.num_keys):
            sigma2, pi = self.sigma2()[:, r].to(q.dtype).view(-1, 1, 1), self.log_mixture()[:, r].to(q.dtype)
            distance = squared_distance(q, self.components(k)[..., r, :])
            densities.append(pi.view(-1, 1, 1) - self.head_dim / 2 * sigma2.log() - distance / (2 * sigma2))
        logits = self.combine(torch.stack(densities, -1))  # (B, H, S, N)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        w = logits.softmax(-1)
        return w if allowed is None else w.masked_fill(~allowed, 0)

    def literal_features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """φ of MLK by the formula, one component after the other."""
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k, pi, phi_k = q.to(wide), k.to(wide), self.mixture_logits.to(wide).softmax(0), 0.0  # π (R, H)
        for r in range(self.num_keys):
            k_r = k
            if self.keys == "multi":
                k_r = k[..., r * self.head_dim : (r + 1) * self.head_dim]
            elif r > 0:
                k_r = k - self.shifts[r - 1].to(wide).unsqueeze(1)  # (H, 1, D)
            phi_k = phi_k + pi[r].view(-1, 1, 1) * torch.where(k_r > 0, k_r + 1, k_r.clamp(max=0).exp())
        return torch.where(q > 0, q + 1, q.clamp(max=0).exp()), phi_k

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        if self.linear:
            return initial_state(batch_size, self.num_heads, self.head_dim, self.head_dim, None, True, device, dtype)
        return empty_cache(batch_size, self.num_heads, self.key_dim, device, dtype, self.head_dim)

    def extend(self, q, k, v, state, key_mask=None):
        if self.linear:
            return self.run_linear(q, zero_masked(k, key_mask), zero_masked(v, key_mask), key_mask, state)
        self.learn_mixture(q, self.components(k), key_mask)
        state = extend_cache(state, k, v, key_mask)
        augmented = self.augmented(q, self.components(state["k"]))
        return self.mix(*augmented, state["v"], state["mask"], state["k"].shape[2] - q.shape[2]), state

    def absorb(self, k, v, state, key_mask=None):
        return super().absorb(k, v, state, key_mask) if self.linear else extend_cache(state, k, v, key_mask)
