"""Separable self-attention (Mehta & Rastegari 2022, "Separable Self-attention for Mobile Vision Transformers").

    s = x W_I (B, N, L),    cs = softmax over tokens of s,    cv = Σ_j cs_j (x_j W_K),    y = (relu(x W_V) ⊙ cv) W_O

One context vector for all tokens: O(N·d) beyond the projections. The paper does not define its L > 1 latent tokens;
here the channels of x W_K form L groups, and group l is pooled by its own scores cs^l. L = 1 is exactly the paper.
Because pooling is linear in the keys, tokens are pooled first and the pooled vector is projected: keys are never
computed per token. Causal, the softmax runs over each prefix. State: S (B, L, 1, d/L), c and z (B, L, 1).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..linear.autocast import without_autocast
from ..linear.prefix_softmax import prefix_attention, prefix_softmax_state, prefix_step
from .base import Attention, AttentionOutput, check_positive, linear
from .bypass import can_bypass
from .registry import register_attention


@register_attention
class Separable(Attention):
    """
    Args:
        num_latent_tokens: L; must divide hidden_size.

    `num_heads` and `head_dim` mean nothing here and are accepted so that it fits where other mechanisms do.
    """

    paper = "Mehta 2022"
    cost = "Nd"
    supports_causal = True
    supports_recurrent = True
    supports_cross = True
    per_head = False

    def __init__(self, hidden_size: int, num_heads: int, *, num_latent_tokens: int = 1, **common):
        check_positive("num_latent_tokens", num_latent_tokens)
        if hidden_size % num_latent_tokens:
            raise ValueError(f"num_latent_tokens={num_latent_tokens} must divide hidden_size={hidden_size}.")
        self.num_latent_tokens = num_latent_tokens
        super().__init__(hidden_size, num_heads, **common)

    def build_projections(self, bias: bool, output_bias: bool) -> None:
        d = self.hidden_size
        self.q_proj, self.k_proj = linear(d, self.num_latent_tokens, bias), linear(d, d, bias)
        self.v_proj, self.o_proj = linear(d, d, bias), linear(d, d, output_bias)

    def forward(
        self,
        hidden_states,
        key_mask=None,
        position_ids=None,
        grid=None,
        state=None,
        output_attentions=False,
        context=None,
        context_mask=None,
    ):
        self.check_inputs(hidden_states, key_mask, position_ids, grid, state, output_attentions, context, context_mask)
        if key_mask is not None:
            hidden_states = hidden_states.masked_fill(~key_mask.unsqueeze(-1), 0)
        if context is None:
            context, context_mask = hidden_states, key_mask
        elif context_mask is not None:
            context = context.masked_fill(~context_mask.unsqueeze(-1), 0)
        scores = self.q_proj(context)  # (B, M, L)
        if self.causal:
            pooled, state = self.prefix_context(context, scores, context_mask, state)
        else:
            pooled = self.context(context, scores, context_mask)
        output = self.o_proj(F.relu(self.v_proj(hidden_states)) * pooled)
        return AttentionOutput(self.output_dropout(output), None, state)

    def context(self, x: Tensor, scores: Tensor, key_mask: Tensor | None) -> Tensor:
        """cv (B, 1, d) of a whole sequence."""
        if key_mask is not None:
            scores = scores.masked_fill(~key_mask.unsqueeze(-1), torch.finfo(scores.dtype).min)
        weights = scores.softmax(1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(x.dtype)
        if key_mask is not None:
            weights = weights * key_mask.unsqueeze(-1)
        weights = F.dropout(weights, self.dropout, self.training)
        if not can_bypass(self.k_proj, nn.Linear):  # an adapter, say, is to see every token
            groups = weights.repeat_interleave(self.hidden_size // self.num_latent_tokens, -1)
            return (groups * self.k_proj(x)).sum(1, keepdim=True)
        pooled = weights.mT @ x  # (B, L, d)
        if self.num_latent_tokens == 1:
            projected = F.linear(pooled, self.k_proj.weight)
        else:
            groups = self.k_proj.weight.unflatten(0, (self.num_latent_tokens, -1))  # (L, d/L, d)
            projected = torch.einsum("bld,lgd->blg", pooled, groups).flatten(1).unsqueeze(1)
        return self.add_key_bias(projected, weights.sum(1, keepdim=True))

    def add_key_bias(self, context: Tensor, mass: Tensor) -> Tensor:
        """The scores sum to 1 (0 where no key is seen, 1 on average under dropout): so much bias was pooled."""
        if self.k_proj.bias is None:
            return context
        return context + self.k_proj.bias * mass.repeat_interleave(self.hidden_size // self.num_latent_tokens, -1)

    def prefix_context(self, x, scores, key_mask, state) -> tuple[Tensor, dict | None]:
        """cv_i (B, N, d) of every prefix."""
        carried = state is not None
        dtype, wide = x.dtype, torch.promote_types(x.dtype, torch.float32)
        state = state if carried else self.initial_state(x.shape[0], x.device, wide)
        with without_autocast(x):
            logits = scores.to(wide).mT.unsqueeze(-1)  # (B, L, N, 1)
            keys = self.k_proj(x).to(wide)
            v = keys.unflatten(-1, (self.num_latent_tokens, -1)).transpose(1, 2)  # (B, L, N, d/L)
            keep = None
            if self.training and self.dropout:
                keep = F.dropout(torch.ones_like(logits[..., 0]), self.dropout)
            ones = torch.zeros_like(logits)
            if x.shape[1] == 1 and key_mask is None and keep is None and not torch.is_grad_enabled():
                context, state = prefix_step(ones, logits, v, state)
            else:
                context, state = prefix_attention(ones, logits, v, state, key_mask, keep)
        return context.transpose(1, 2).flatten(2).to(dtype), state if carried else None

    def naive(self, hidden_states, key_mask=None, position_ids=None, context=None):
        x = hidden_states if context is None else context  # what is looked at
        x = x if key_mask is None else x.masked_fill(~key_mask.unsqueeze(-1), 0)
        batch, length, _ = x.shape
        scores, keys, rows = self.q_proj(x), self.k_proj(x), []
        for i in range(hidden_states.shape[1]):
            seen = torch.ones(batch, length, dtype=torch.bool, device=x.device)
            if self.causal:
                seen[:, i + 1 :] = False
            if key_mask is not None:
                seen &= key_mask
            cs = scores.masked_fill(~seen.unsqueeze(-1), -torch.inf).softmax(1).nan_to_num(0)  # (B, N, L)
            rows.append((cs.repeat_interleave(self.hidden_size // self.num_latent_tokens, -1) * keys).sum(1))
        gates = F.relu(self.v_proj(x if context is None else hidden_states))
        return self.output_dropout(self.o_proj(gates * torch.stack(rows, 1)))

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        width = self.hidden_size // self.num_latent_tokens
        return prefix_softmax_state(batch_size, self.num_latent_tokens, 1, width, device, dtype)
