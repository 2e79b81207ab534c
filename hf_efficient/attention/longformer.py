"""Longformer (Beltagy et al. 2020): a sliding window, dilated or not, and a few tokens that see and are seen by all.

    o_i = Σ_{j∈A(i)} softmax_j(q_i·k_j / √D) v_j,
    A(i) = {j : |i − j| ≤ wδ, δ divides i − j} ∪ {j global},  for a global i all j,  causal only j ≤ i, i − j < wδ

The first G real tokens are global. With `separate_global` their rows have projections of their own, as published:
o_i = Σ_j softmax_j(q'_i·k'_j / √D) v'_j, where q', k', v' start as copies of q, k, v. It is off by default: then
nothing is learned beyond the projections, and the mechanism is an `attn_implementation` too.

Cost O(N·(w + G)·D): one softmax over the band's blocks with the G global keys beside them; nothing is N×N. The
recurrent state is the last wδ keys and values and the G global ones. w ≥ N is softmax attention, G = 0 `local`.

The band is counted in columns, global tokens are counted over real ones: padding on either side changes no real token.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Attention, check_choice, check_positive, linear
from .local import banded_attention, real_tokens
from .masking import allowed_keys, masked_softmax, take_tokens, zero_masked
from .registry import register_attention
from .softmax import softmax_attention


@register_attention
class Longformer(Attention):
    """Softmax attention within a window and with global tokens.

    Args:
        window: w; w tokens to each side, or, causal, the last w tokens with the token itself among them.
        dilation: δ, only every δ-th token is looked at, over a window of w·δ.
        num_global: G.
        separate_global: global tokens look with q, k and v projections of their own; bidirectional only, since the
            first tokens of a text have nothing but each other to look at.
    """

    paper = "Beltagy 2020"
    cost = "N(w+G)D"
    parameter_free = True
    exempt_from = ("permutation",)
    supports_causal = True
    supports_recurrent = True

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        window: int = 64,
        dilation: int = 1,
        num_global: int = 1,
        separate_global: bool = False,
        **common,
    ):
        check_positive("window", window)
        check_positive("dilation", dilation)
        if isinstance(num_global, bool) or not isinstance(num_global, int) or num_global < 0:
            raise ValueError(f"num_global={num_global!r} must be 0 or a positive integer.")
        check_choice("separate_global", separate_global, (False, True))
        if separate_global and not num_global:
            raise ValueError("separate_global=True needs num_global of 1 or more: there is no token to project.")
        self.separate_global = separate_global  # before super(), which builds the projections
        super().__init__(hidden_size, num_heads, **common)
        self.window, self.dilation, self.num_global = window, dilation, num_global
        if separate_global:
            if self.causal:
                self.refuse("causal=True", "supports_causal", " with separate_global=True: use False")
            if not hasattr(self, "q_proj"):
                raise ValueError("separate_global=True needs projections=True: who brings q, k, v has no others.")
            self.key_dim = 2 * self.head_dim
            self.reset_parameters()

    def build_projections(self, bias, output_bias):
        super().build_projections(bias, output_bias)
        if self.separate_global:
            inner = self.num_heads * self.head_dim
            self.q_global_proj = linear(self.hidden_size, inner, bias)
            self.k_global_proj = linear(self.hidden_size, inner, bias)
            self.v_global_proj = linear(self.hidden_size, inner, bias)

    def reset_parameters(self):
        if self.separate_global:
            self.q_global_proj.load_state_dict(self.q_proj.state_dict())
            self.k_global_proj.load_state_dict(self.k_proj.state_dict())
            self.v_global_proj.load_state_dict(self.v_proj.state_dict())

    def project(self, hidden_states):
        """(B, N, d) -> q, k, v (B, H, N, D), or (B, H, N, 2D) with those of global tokens behind them"""
        heads = super().project(hidden_states)
        if not self.separate_global:
            return heads
        projections = (self.q_global_proj, self.k_global_proj, self.v_global_proj)
        own = self.split_heads(*(projection(hidden_states) for projection in projections))
        return tuple(torch.cat(pair, -1) for pair in zip(heads, own, strict=True))

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        batch, _, length, _ = q.shape
        dropout = self.dropout if self.training else 0.0
        if self.window >= length and self.dilation == 1 and not self.separate_global:
            return softmax_attention(q, k, v, causal=self.causal, key_mask=key_mask, dropout=dropout)
        if self.causal:
            return self.extend(q, k, v, self.initial_state(batch, q.device, q.dtype), key_mask)[0]
        (q, own_q), (k, own_k), (v, own_v) = (self._both(x) for x in (q, k, v))
        real, k, v = real_tokens(q, key_mask), zero_masked(k, key_mask), zero_masked(v, key_mask)
        is_global, at = self._global(real)
        held = is_global.gather(1, at)  # (B, G): fewer tokens than G leave places empty
        shared = take_tokens(k, at), take_tokens(v, at), held.unsqueeze(1).expand(-1, length, -1)
        window = min(self.window, -(-length // self.dilation))
        around = (window * self.dilation,) * 2
        k, v, real = F.pad(k, (0, 0, *around)), F.pad(v, (0, 0, *around)), F.pad(real & ~is_global, around)
        output = self._banded(q, k, v, real, shared, window)
        rows = softmax_attention(take_tokens(own_q, at), own_k, own_v, key_mask=key_mask, dropout=dropout)
        rows = torch.where(held[:, None, :, None], rows, take_tokens(output, at))
        return output.scatter(2, at[:, None, :, None].expand_as(rows), rows)

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        j = torch.arange(k.shape[2], device=k.device)
        i = j if rows is None else rows
        offset, reach = i[:, None] - j, self.window * self.dilation
        band = (offset < reach) if self.causal else (offset.abs() <= reach)
        is_global = self._global(real_tokens(q, key_mask))[0]  # (B, N)
        seen = (band & (offset % self.dilation == 0)) | is_global.unsqueeze(1)  # (B, S, N)
        if not self.causal:  # the first tokens of a text see each other anyway
            seen = seen | is_global[:, i, None]
        allowed = allowed_keys(k.shape[2], self.causal, key_mask, rows, k.device)
        seen = seen.unsqueeze(1) if allowed is None else seen.unsqueeze(1) & allowed
        (q, own_q), (k, own_k) = self._both(q[:, :, i]), self._both(zero_masked(k, key_mask))
        logits = torch.where(is_global[:, None, i, None], own_q @ own_k.mT, q @ k.mT) * self.head_dim**-0.5
        return masked_softmax(logits, seen)

    def mix(self, weights, v, key_mask=None):
        if not self.separate_global:
            return super().mix(weights, v, key_mask)
        is_global = self._global(real_tokens(v, key_mask))[0]
        v, own_v = self._both(zero_masked(v, key_mask))
        return torch.where(is_global[:, None, :, None], weights @ own_v, weights @ v)

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        """k, v (B, H, wδ, D), oldest first, and mask (B, wδ): which of them hold a token that is not global; global_k,
        global_v (B, H, G, D) and seen (B,), how many real tokens there were."""
        ring = (batch_size, self.num_heads, self.window * self.dilation, self.head_dim)
        kept = (batch_size, self.num_heads, self.num_global, self.head_dim)
        return {
            "k": torch.zeros(ring, device=device, dtype=dtype),
            "v": torch.zeros(ring, device=device, dtype=dtype),
            "mask": torch.zeros(batch_size, ring[2], device=device, dtype=torch.bool),
            "global_k": torch.zeros(kept, device=device, dtype=dtype),
            "global_v": torch.zeros(kept, device=device, dtype=dtype),
            "seen": torch.zeros(batch_size, device=device, dtype=torch.long),
        }

    def extend(self, q, k, v, state, key_mask=None):
        real, k, v = real_tokens(q, key_mask), zero_masked(k, key_mask), zero_masked(v, key_mask)
        before = state["seen"].unsqueeze(1)
        seen = before + real.cumsum(1)  # (B, N)
        is_global, at = self._global(real, before)
        place = torch.arange(self.num_global, device=q.device)
        new = at.gather(1, (place - before).clamp(0, max(at.shape[1] - 1, 0))) if self.num_global else at
        old = (place < before)[:, None, :, None]
        global_k, global_v = (
            torch.where(old, state[name].to(x.dtype), take_tokens(x, new))
            for name, x in (("global_k", k), ("global_v", v))
        )
        k, v = torch.cat([state["k"].to(k.dtype), k], 2), torch.cat([state["v"].to(v.dtype), v], 2)
        mask = torch.cat([state["mask"], real & ~is_global], 1)
        output = self._banded(q, k, v, mask, (global_k, global_v, place < seen.unsqueeze(2)), self.window)
        last = slice(-self.window * self.dilation, None)  # cloned, or a view would keep the whole of a long prompt
        held = (place < seen[:, -1:])[:, None, :, None]
        return output, {
            "k": k[:, :, last].clone(),
            "v": v[:, :, last].clone(),
            "mask": mask[:, last].clone(),
            "global_k": global_k.masked_fill(~held, 0),
            "global_v": global_v.masked_fill(~held, 0),
            "seen": seen[:, -1].clone(),
        }

    def _both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What other tokens use, and what global ones do."""
        return tuple(x.chunk(2, -1)) if self.separate_global else (x, x)

    def _global(self, real: Tensor, before: Tensor | int = 0) -> tuple[Tensor, Tensor]:
        """Which tokens are global, (B, N), and where they are, in order and then any others, (B, min(G, N))."""
        is_global = real & (before + real.cumsum(1) <= self.num_global)
        return is_global, (~is_global).byte().argsort(dim=1, stable=True)[:, : self.num_global]

    def _banded(self, q, k, v, real, shared, window):
        """Tokens a multiple of δ apart are sequences of their own, each with a window of w."""
        step, (batch, _, length, _) = self.dilation, q.shape
        dropout = self.dropout if self.training else 0.0
        if step > 1:
            q, k, v = (_apart(x, 2, step) for x in (q, k, v))
            real, seen = _apart(real, 1, step), _apart(shared[2], 1, step)
            shared = (shared[0].repeat_interleave(step, 0), shared[1].repeat_interleave(step, 0), seen)
        where = {"window": window, "causal": self.causal, "dropout": dropout, "shared": shared}
        output = banded_attention(q, k, v, real, **where)
        return output.unflatten(0, (batch, step)).permute(0, 2, 3, 1, 4).flatten(2, 3)[:, :, :length]


def _apart(x: Tensor, dim: int, step: int) -> Tensor:
    """(B, .., N, ..) -> (B·step, .., ⌈N / step⌉, ..): the tokens 0, step, 2·step, ..., then 1, 1 + step, ..."""
    x = torch.cat([x, x.new_zeros(x.shape[:dim] + (-x.shape[dim] % step,) + x.shape[dim + 1 :])], dim)
    return x.unflatten(dim, (-1, step)).movedim(dim + 1, 1).flatten(0, 1)
