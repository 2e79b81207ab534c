"""Differential attention (Li et al. 2022, "DiViT"): a patch is its left neighbour plus a difference of few bits.

    Δ_i = x_i − x_{i−1},    q_i = q_{i−1} + W_q Q(Δ_i),  k and v alike,    o = softmax(q kᵀ / √D) v

along the rows of an R × C grid; the first patch of each row is taken whole. Q rounds to `bits` with one scale for each
image, s = max |Δ| / (2^(bits−1) − 1), Q(Δ) = s·round(Δ / s), and lets gradients pass. Its errors add up along a row.
Without `bits` it is softmax attention.

Since projections are linear, q_i is the projection of the sum of what was sent, and that is how it is computed. What
this saves is bits of Δ on hardware made for it. On a CPU or GPU it saves nothing: cost O(N²·D), as softmax attention.
It tells what such hardware would do to a model.

A patch to the right of a masked one is taken whole, and masked ones have no part in the scale: padding on any side
changes no real cell. A CLS token is not on the grid.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Attention
from .masking import allowed_keys, masked_softmax, zero_masked
from .registry import register_attention
from .softmax import softmax_attention


@register_attention
class Differential(Attention):
    """Softmax attention over patches sent as differences.

    Args:
        bits: of a difference, 2 to 16; None = not rounded.
    """

    paper = "Li 2022"
    cost = "N²D"
    needs_grid = True
    per_head = False  # it changes what is projected
    exempt_from = ("permutation",)

    def __init__(self, hidden_size: int, num_heads: int, *, bits: int | None = 8, **common):
        super().__init__(hidden_size, num_heads, **common)
        if bits is not None and (isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= 16):
            raise ValueError(f"bits={bits!r} must be an integer from 2 to 16, or None for no rounding.")
        self.bits = bits
        if bits is not None:  # rounding lets gradients pass
            self.exempt_from = (*self.exempt_from, "derivatives")

    def forward(self, hidden_states, key_mask=None, position_ids=None, grid=None, **others):
        self.check_inputs(hidden_states, key_mask, position_ids, grid)
        return super().forward(self.received(hidden_states, grid, key_mask), key_mask, position_ids, grid, **others)

    def attend(self, q, k, v, key_mask=None, position_ids=None, grid=None):
        return softmax_attention(q, k, v, key_mask=key_mask, dropout=self.dropout if self.training else 0.0)

    def received(self, hidden_states: Tensor, grid: tuple[int, int], key_mask: Tensor | None = None) -> Tensor:
        """The patches as the sums of what was sent, (B, N, d): themselves and the errors up to them."""
        if self.bits is None:
            return hidden_states
        with torch.no_grad():
            difference, sent, whole = self._sent(hidden_states, grid, key_mask)  # (B, R, C, d)
            error = (sent - difference).masked_fill(whole, 0).cumsum(2)
            column = torch.arange(grid[1], device=error.device)[:, None].expand_as(whole)
            start = column.masked_fill(~whole, 0).cummax(2)[0]  # the last patch that was taken whole
            error = error - error.gather(2, start.expand_as(error))
        return hidden_states + error.flatten(1, 2)

    def naive(self, hidden_states, key_mask=None, position_ids=None, grid=None):
        """(B, N, d) -> (B, N, d), patch after patch"""
        difference, sent, whole = self._sent(hidden_states, grid, key_mask)
        sent = difference + (sent - difference).detach()
        patches = hidden_states.unflatten(1, grid)
        heads = []
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            columns = []
            for c in range(grid[1]):
                x = projection(patches[:, :, c])
                if c:
                    x = torch.where(whole[:, :, c], x, columns[-1] + F.linear(sent[:, :, c], projection.weight))
                columns.append(x)
            heads.append(torch.stack(columns, 2).flatten(1, 2))
        q, k, v = (x.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for x in heads)
        logits = q @ zero_masked(k, key_mask).mT * self.head_dim**-0.5
        return self.merge_heads(
            masked_softmax(logits, allowed_keys(k.shape[2], False, key_mask)) @ zero_masked(v, key_mask)
        )

    def _sent(self, hidden_states: Tensor, grid: tuple[int, int], key_mask: Tensor | None) -> tuple[Tensor, ...]:
        """Δ and Q(Δ) (B, R, C, d), and which patches are taken whole instead (B, R, C, 1)."""
        x = hidden_states.unflatten(1, grid)
        difference = x - F.pad(x, (0, 0, 1, 0))[:, :, :-1]
        whole = torch.zeros_like(x[..., :1], dtype=torch.bool)
        whole[:, :, 0] = True
        if key_mask is not None:
            real = key_mask.unflatten(1, grid).unsqueeze(3)
            whole = whole | ~real | ~F.pad(real, (0, 0, 1, 0))[:, :, :-1]
        if self.bits is None:
            return difference, difference, whole
        largest = difference.masked_fill(whole, 0).abs().amax((1, 2, 3), keepdim=True)
        scale = (largest / (2 ** (self.bits - 1) - 1)).clamp_min(torch.finfo(x.dtype).tiny)
        return difference, (difference / scale).round() * scale, whole
