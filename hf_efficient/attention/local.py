"""Local attention, a sliding window (Beltagy et al. 2020, "Longformer"): token i sees its neighbours only.

    o = softmax(q kᵀ / √D over A(i)) v,    A(i) = {j : |i − j| ≤ w},  causal {j : i − w < j ≤ i}

Cost O(N·w·D): queries go in blocks, each against the one stretch of keys its window can reach, with the exact band as
mask; nothing is N×N. The recurrent state is the last w keys and values. With w ≥ N it is softmax attention.

The band is counted in columns. Padding to the left or right of a sequence therefore changes no real token; a gap in
the middle of the mask still takes up room in the window.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Attention, check_positive
from .masking import allowed_keys, masked_softmax, zero_masked
from .registry import register_attention
from .softmax import softmax_attention


@register_attention
class Local(Attention):
    """Softmax attention within a window.

    Args:
        window: w; w tokens to each side, or, causal, the last w tokens with the token itself among them.
    """

    paper = "Beltagy 2020"
    cost = "NwD"
    parameter_free = True
    exempt_from = ("permutation",)
    supports_causal = True
    supports_recurrent = True

    def __init__(self, hidden_size: int, num_heads: int, *, window: int = 64, **common):
        super().__init__(hidden_size, num_heads, **common)
        check_positive("window", window)
        self.window = window

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        if self.window >= q.shape[2]:
            dropout = self.dropout if self.training else 0.0
            return softmax_attention(q, k, v, causal=self.causal, key_mask=key_mask, dropout=dropout)
        around = (self.window, 0 if self.causal else self.window)
        k, v = (F.pad(zero_masked(x, key_mask), (0, 0, *around)) for x in (k, v))
        return self._banded(q, k, v, F.pad(real_tokens(q, key_mask), around))

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        j = torch.arange(k.shape[2], device=k.device)
        i = (j if rows is None else rows)[:, None]
        band = (i - j < self.window) if self.causal else ((i - j).abs() <= self.window)
        allowed = allowed_keys(k.shape[2], self.causal, key_mask, rows, k.device)
        logits = (q if rows is None else q[:, :, rows]) @ zero_masked(k, key_mask).mT * self.head_dim**-0.5
        return masked_softmax(logits, band if allowed is None else band & allowed)

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        """k, v (B, H, w, D), oldest first, and mask (B, w): which of them hold a token."""
        shape = (batch_size, self.num_heads, self.window, self.head_dim)
        return {
            "k": torch.zeros(shape, device=device, dtype=dtype),
            "v": torch.zeros(shape, device=device, dtype=dtype),
            "mask": torch.zeros(batch_size, self.window, device=device, dtype=torch.bool),
        }

    def extend(self, q, k, v, state, key_mask=None):
        k = torch.cat([state["k"].to(k.dtype), zero_masked(k, key_mask)], 2)
        v = torch.cat([state["v"].to(v.dtype), zero_masked(v, key_mask)], 2)
        mask = torch.cat([state["mask"], real_tokens(q, key_mask)], 1)
        last = slice(-self.window, None)  # cloned, since a view would keep the whole of a long prompt alive
        state = {"k": k[:, :, last].clone(), "v": v[:, :, last].clone(), "mask": mask[:, last].clone()}
        return self._banded(q, k, v, mask), state

    def _banded(self, q, k, v, real):
        dropout = self.dropout if self.training else 0.0
        return banded_attention(q, k, v, real, window=self.window, causal=self.causal, dropout=dropout)


def banded_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor,
    *,
    window: int,
    causal: bool,
    dropout: float = 0.0,
    shared: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """q (B, H, N, D) against k, v, real that begin w tokens before it and, bidirectional, end w tokens after.

    `shared` are keys and values (B, H, G, D) beside the band, and which of them each query sees, (B, N, G).
    """
    batch, _, length, _ = q.shape
    block = min(window, length)
    width = k.shape[2] - length + block  # what a block's window can reach
    spare = -length % block
    q, k, v = (F.pad(x, (0, 0, 0, spare)) for x in (q, k, v))
    q = q.unflatten(2, (-1, block)).transpose(1, 2).flatten(0, 1)  # (B·n, H, block, D)
    k, v = (x.unfold(2, width, block).permute(0, 2, 1, 4, 3).flatten(0, 1) for x in (k, v))  # (B·n, H, width, D)
    real = F.pad(real, (0, spare)).unfold(1, width, block)  # (B, n, width)
    row, column = torch.arange(block, device=q.device)[:, None], torch.arange(width, device=q.device)
    offset = column - row - window  # j − i
    band = (offset > -window) & (offset <= 0) if causal else offset.abs() <= window
    allowed = real.unsqueeze(2) & band  # (B, n, block, width)
    if shared is not None:
        copies = allowed.shape[1]
        k, v = (torch.cat([x, y.repeat_interleave(copies, 0)], 2) for x, y in zip((k, v), shared, strict=False))
        allowed = torch.cat([allowed, F.pad(shared[2], (0, 0, 0, spare)).unflatten(1, (-1, block))], 3)
    allowed = allowed.flatten(0, 1).unsqueeze(1)  # (B·n, 1, block, width + G)
    # Finite, so that a row which sees nothing becomes 0 below and not NaN in the backward pass.
    mask = torch.zeros_like(allowed, dtype=q.dtype).masked_fill(~allowed, torch.finfo(q.dtype).min / 4)
    output = F.scaled_dot_product_attention(q, k, v, mask, dropout)
    output = output.masked_fill(~allowed.any(-1, keepdim=True), 0)
    return output.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)[:, :, :length]


def real_tokens(q: Tensor, key_mask: Tensor | None) -> Tensor:
    """(B, N)"""
    return q.new_ones(q.shape[0], q.shape[2], dtype=torch.bool) if key_mask is None else key_mask
