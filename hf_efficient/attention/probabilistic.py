"""Probabilistic attention (Movellan & Gabbur 2020): attention as inference in a mixture with one component per key.

    log w_ij = log π_j + (D/2) log α − ½α‖q_i − ξ_j‖²,    w = softmax over j,    o_i = Σ_j w_ij μ_j,    ξ = k, μ = v

α = softplus(a) per head starts at 1/√D. With the prior π_j ∝ exp(½α‖k_j‖²) ("magnitude") this is exactly softmax
attention, so a model starts there; "uniform" is Gaussian attention. O(N²D): not cheaper than softmax.

Key adaptation, `key_iterations` EM steps: ξ_j ← (θ k_j + α Σ_i w_ij q_i) / (θ + α Σ_i w_ij). The prior mean stays the
original k_j, so that the penalised likelihood rises with every step (with the running mean of the public code it
falls). It mixes all queries and is therefore bidirectional only. `propagate_values` does the same for values that are
observed at some tokens.
"""

import math

import torch
from torch import Tensor, nn

from .base import Attention, check_choice
from .masking import allowed_keys, masked_softmax, zero_masked
from .registry import register_attention
from .softmax import cached_attention, empty_cache, extend_cache, softmax_attention, squared_distance


@register_attention
class Probabilistic(Attention):
    """
    Args:
        prior: "magnitude" or "uniform".
        key_iterations: T_k, EM steps on the keys.
        key_strength: θ, how firmly adapted keys are held to the original ones.
    """

    paper = "Movellan 2020"
    cost = "(T+1)N²D"
    supports_causal = True
    supports_cross = True

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        prior: str = "magnitude",
        key_iterations: int = 0,
        key_strength: float = 1.0,
        **common,
    ):
        super().__init__(hidden_size, num_heads, **common)
        check_choice("prior", prior, ("magnitude", "uniform"))
        if isinstance(key_iterations, bool) or not isinstance(key_iterations, int) or key_iterations < 0:
            raise ValueError(f"key_iterations={key_iterations!r} must be 0 or a positive integer.")
        if not isinstance(key_strength, (int, float)) or not 0 < key_strength < math.inf:
            raise ValueError(f"key_strength={key_strength!r} must be a positive number.")
        if self.causal and key_iterations:
            self.refuse(
                "causal=True", "supports_causal", f" with key_iterations={key_iterations} (mixes all queries): use 0"
            )
        self.prior, self.key_iterations, self.key_strength = prior, key_iterations, float(key_strength)
        self.supports_cross = key_iterations == 0  # the steps mix queries that are padded as the keys are
        self.precision = nn.Parameter(torch.empty(num_heads))  # a, before the softplus
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.precision, math.log(math.expm1(self.head_dim**-0.5)))

    @property
    def alpha(self) -> Tensor:
        """(H, 1, 1)"""
        return nn.functional.softplus(self.precision).view(-1, 1, 1)

    def key_bias(self, k: Tensor, adapted: Tensor) -> Tensor | None:
        """What a key adds to its logits besides α q·ξ: log π_j − ½α‖ξ_j‖², (B, H, N); None = 0."""
        if self.prior == "magnitude" and adapted is k:
            return None
        bias = -adapted.square().sum(-1)
        if self.prior == "magnitude":
            bias = bias + k.square().sum(-1)
        return self.alpha[..., 0] / 2 * bias

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        k = zero_masked(k, key_mask)
        adapted = self.adapt_keys(q, k, key_mask, self.key_iterations)
        return softmax_attention(
            q,
            adapted * self.alpha.to(k.dtype),
            v,
            causal=self.causal,
            key_mask=key_mask,
            key_bias=self.key_bias(k, adapted),
            scale=1.0,
            dropout=self.dropout if self.training else 0.0,
        )

    def adapt_keys(self, q: Tensor, k: Tensor, key_mask: Tensor | None, iterations: int) -> Tensor:
        """ξ (B, H, N, D) after some EM steps; padded queries have no part in them."""
        adapted, alpha = k, self.alpha.to(k.dtype)
        for _ in range(iterations):
            logits, bias = q @ (adapted * alpha).mT, self.key_bias(k, adapted)
            logits = logits if bias is None else logits + bias.unsqueeze(-2)
            w = zero_masked(masked_softmax(logits, allowed_keys(k.shape[2], False, key_mask)), key_mask)
            mass = w.sum(-2).unsqueeze(-1)  # (B, H, N, 1)
            pulled = w.mT @ zero_masked(q, key_mask)
            adapted = (self.key_strength * k + alpha * pulled) / (self.key_strength + alpha * mass)
        return adapted

    def propagate_values(
        self, q, k, v, observed, values, key_mask=None, strength: float = 1.0, precision: float = 1.0
    ) -> Tensor:
        """The output where some tokens' values are known: observed (B, N) bool, values (B, H, N, Dv).

        μ_j ← (θ_v v_j + β Σ_{i∈O} w_ij values_i) / (θ_v + β Σ_{i∈O} w_ij), then o = w μ, with θ_v `strength`, β
        `precision`.
        """
        w = self.weights(q, k, key_mask)
        part = w * observed[:, None, :, None]
        v, values = zero_masked(v, key_mask), zero_masked(values, observed)
        means = (strength * v + precision * part.mT @ values) / (strength + precision * part.sum(-2).unsqueeze(-1))
        return w @ means

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        k, alpha, adapted = zero_masked(k, key_mask), self.alpha.to(k.dtype), zero_masked(k, key_mask)
        allowed = allowed_keys(k.shape[2], self.causal, key_mask, None, k.device)
        log_prior = alpha / 2 * k.square().sum(-1).unsqueeze(-2) if self.prior == "magnitude" else 0.0
        for step in range(self.key_iterations + 1):
            density = self.head_dim / 2 * alpha.log() - alpha / 2 * squared_distance(q, adapted)
            w = masked_softmax(log_prior + density, allowed)
            if step < self.key_iterations:
                from_real = w if key_mask is None else w * key_mask[:, None, :, None]
                pulled = torch.einsum("bhij,bhid->bhjd", from_real, zero_masked(q, key_mask))
                weight = self.key_strength + alpha * from_real.sum(-2).unsqueeze(-1)
                adapted = (self.key_strength * k + alpha * pulled) / weight
        return w if rows is None else w[:, :, rows]

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        return empty_cache(batch_size, self.num_heads, self.head_dim, device, dtype)

    def extend(self, q, k, v, state, key_mask=None):
        state = extend_cache(state, k, v, key_mask)
        bias = self.key_bias(state["k"], state["k"])
        dropout = self.dropout if self.training else 0.0
        return cached_attention(q, state, bias, self.alpha.to(q.dtype), dropout), state

    def absorb(self, k, v, state, key_mask=None):
        return extend_cache(state, k, v, key_mask)
