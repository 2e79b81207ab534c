"""Probabilistic attention (Movellan & Gabbur 2020): attention as inference in a mixture with one component per key.

    log w_ij = log π_j + (D/2) log α − ½α‖q_i − ξ_j‖²,    w = softmax over j,    o_i = Σ_j w_ij μ_j,    ξ = k, μ = v

α = softplus(a) per head starts at 1/√D. With the prior π_j ∝ exp(½α‖k_j‖²) ("magnitude") this is exactly softmax
attention, so a model starts there; "uniform" is Gaussian attention. O(N²D): not cheaper than softmax.

Key adaptation, `key_iterations` EM steps: ξ_j ← (θ k_j + α Σ_i w_ij q_i) / (θ + α Σ_i w_ij). The prior mean stays the
original k_j, so that the penalised likelihood rises with every step (with the running mean of the public code it
falls).

Value propagation, `value_propagation`: μ_j ← (θ_v v_j + β Σ_{i∈O} w_ij v_i) / (θ_v + β Σ_{i∈O} w_ij) for the values
observed at the tokens O. In a layer by itself every real token observes its own value: what attends to a key pulls at
its value, and o = w μ reaches two steps far. (The paper's O are pixels that somebody labelled: `propagate_values`.)
One step is all there is: μ is a function of w and v alone.

Both mix all queries, and are therefore bidirectional only.
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
        value_propagation: whether values are pulled by those of the tokens that attend to them.
        value_strength: θ_v, how firmly they are held to the original ones.
        value_precision: β, how much an observed value counts.
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
        value_propagation: bool = False,
        value_strength: float = 1.0,
        value_precision: float = 1.0,
        **common,
    ):
        super().__init__(hidden_size, num_heads, **common)
        check_choice("prior", prior, ("magnitude", "uniform"))
        if isinstance(key_iterations, bool) or not isinstance(key_iterations, int) or key_iterations < 0:
            raise ValueError(f"key_iterations={key_iterations!r} must be 0 or a positive integer.")
        check_choice("value_propagation", value_propagation, (False, True))
        strengths = {"key_strength": key_strength, "value_strength": value_strength}
        for field, value in {**strengths, "value_precision": value_precision}.items():
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"{field}={value!r} must be a positive number.")
        mixes = f"key_iterations={key_iterations} (mixes all queries): use 0" if key_iterations else None
        mixes = "value_propagation=True (mixes all queries): use False" if value_propagation else mixes
        if self.causal and mixes:
            self.refuse("causal=True", "supports_causal", f" with {mixes}")
        self.prior, self.key_iterations, self.key_strength = prior, key_iterations, float(key_strength)
        self.value_propagation, self.value_strength = value_propagation, float(value_strength)
        self.value_precision = float(value_precision)
        self.supports_cross = mixes is None  # the steps mix queries that are padded as the keys are
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
        dropout = self.dropout if self.training else 0.0
        if self.value_propagation:
            w = self.posterior(q, k, adapted, key_mask)
            return nn.functional.dropout(w, dropout) @ self.pull_values(w, zero_masked(v, key_mask), key_mask)
        return softmax_attention(
            q,
            adapted * self.alpha.to(k.dtype),
            v,
            causal=self.causal,
            key_mask=key_mask,
            key_bias=self.key_bias(k, adapted),
            scale=1.0,
            dropout=dropout,
        )

    def posterior(self, q: Tensor, k: Tensor, adapted: Tensor, key_mask: Tensor | None) -> Tensor:
        """The E-step, of all queries: w (B, H, N, N)"""
        logits, bias = q @ (adapted * self.alpha.to(k.dtype)).mT, self.key_bias(k, adapted)
        logits = logits if bias is None else logits + bias.unsqueeze(-2)
        return masked_softmax(logits, allowed_keys(k.shape[2], False, key_mask))

    def adapt_keys(self, q: Tensor, k: Tensor, key_mask: Tensor | None, iterations: int) -> Tensor:
        """ξ (B, H, N, D) after some EM steps; padded queries have no part in them."""
        adapted, alpha = k, self.alpha.to(k.dtype)
        for _ in range(iterations):
            w = zero_masked(self.posterior(q, k, adapted, key_mask), key_mask)
            mass = w.sum(-2).unsqueeze(-1)  # (B, H, N, 1)
            pulled = w.mT @ zero_masked(q, key_mask)
            adapted = (self.key_strength * k + alpha * pulled) / (self.key_strength + alpha * mass)
        return adapted

    def pull_values(self, w: Tensor, v: Tensor, observed: Tensor | None, values: Tensor | None = None) -> Tensor:
        """μ (B, H, N, Dv), from the values (by default v) of the tokens in observed (B, N), by default all."""
        w, values = zero_masked(w, observed), v if values is None else zero_masked(values, observed)
        theta, beta = self.value_strength, self.value_precision
        return (theta * v + beta * w.mT @ values) / (theta + beta * w.sum(-2).unsqueeze(-1))

    def propagate_values(self, q, k, v, observed: Tensor, values: Tensor, key_mask=None) -> Tensor:
        """The output where some tokens' values are known: observed (B, N) bool, values (B, H, N, Dv)."""
        k = zero_masked(k, key_mask)
        w = self.posterior(q, k, self.adapt_keys(q, k, key_mask, self.key_iterations), key_mask)
        return w @ self.pull_values(w, zero_masked(v, key_mask), observed, values)

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
        seen = w if rows is None else w[:, :, rows]
        if not self.value_propagation:
            return seen
        observed = w if key_mask is None else w * key_mask[:, None, :, None]
        held = self.value_strength * torch.eye(k.shape[2], dtype=w.dtype, device=w.device)
        pulls = held + self.value_precision * observed.mT  # row j: how much of each value μ_j is made of
        return seen @ (pulls / pulls.sum(-1, keepdim=True))

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        return empty_cache(batch_size, self.num_heads, self.head_dim, device, dtype)

    def extend(self, q, k, v, state, key_mask=None):
        state = extend_cache(state, k, v, key_mask)
        bias = self.key_bias(state["k"], state["k"])
        dropout = self.dropout if self.training else 0.0
        return cached_attention(q, state, bias, self.alpha.to(q.dtype), dropout), state

    def absorb(self, k, v, state, key_mask=None):
        return extend_cache(state, k, v, key_mask)
