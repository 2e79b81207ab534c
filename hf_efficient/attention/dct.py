"""DCT-Former (Scribano et al. 2023): softmax attention between the lowest frequencies of the sequence.

    x̄ = C x  for x = q, k, v,    o = Cᵀ softmax(q̄ k̄ᵀ / √D) v̄,    C_ft = √(c_f / n) cos(π f (2t + 1) / 2n)

C (m, n) are the first m rows of the orthonormal DCT-II, c_0 = 1 and c_f = 2 otherwise. Cost O(m·N·D + m²·D). With
m = n it is not softmax attention: the softmax compares frequencies instead of tokens. For the same reason there is no
matrix of distributions over tokens to show.

n is a sample's number of real tokens and t counts them, so that padding changes no real token; masked tokens output 0.
m is a number and no share of N, which would make the cost quadratic; never more than n frequencies are used.
"""

import torch
from torch import Tensor

from .base import Attention, check_positive
from .linformer import project_tokens
from .local import real_tokens
from .masking import zero_masked
from .registry import register_attention
from .softmax import softmax_attention


@register_attention
class Dct(Attention):
    """
    Args:
        num_coefficients: m.
    """

    paper = "Scribano 2023"
    cost = "mND"
    parameter_free = True
    exempt_from = ("row_sums", "permutation")

    def __init__(self, hidden_size: int, num_heads: int, *, num_coefficients: int = 128, **common):
        super().__init__(hidden_size, num_heads, **common)
        check_positive("num_coefficients", num_coefficients)
        self.num_coefficients = num_coefficients

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        C, there = self._transform(q, key_mask)
        q, k, v = (project_tokens(C, zero_masked(x, key_mask)) for x in (q, k, v))  # (B, H, m, D)
        dropout = self.dropout if self.training else 0.0
        return project_tokens(C.mT, softmax_attention(q, k, v, key_mask=there, dropout=dropout))

    def naive(self, q, k, v, key_mask=None, position_ids=None):
        outputs = torch.zeros_like(v)
        for sample, real in enumerate(real_tokens(q, key_mask)):
            n = int(real.sum())
            f, t = torch.arange(min(self.num_coefficients, n)).double()[:, None], torch.arange(n)
            C = torch.where(f > 0, 2.0, 1.0).to(f).div(n).sqrt() * torch.cos(torch.pi * f * (2 * t + 1) / (2 * n))
            C = C.to(q)
            q_bar, k_bar, v_bar = (C @ x[sample][:, real] for x in (q, k, v))
            outputs[sample][:, real] = C.mT @ (q_bar @ k_bar.mT / self.head_dim**0.5).softmax(-1) @ v_bar
        return outputs

    def _transform(self, x: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """C, (m, N) or (B, m, N), and which frequencies each sample has, (B, m)."""
        length, wide = x.shape[2], torch.promote_types(x.dtype, torch.float32)
        f = torch.arange(min(self.num_coefficients, length), device=x.device)[:, None]
        t, n = torch.arange(length, device=x.device), torch.tensor(length, device=x.device)
        if key_mask is not None:
            t, n = (key_mask.cumsum(1) - 1).unsqueeze(1), key_mask.sum(1)[:, None, None].clamp_min(1)
        turns = f * (2 * t + 1) % (4 * n)  # whole numbers, so that long sequences are as exact as short ones
        C = (turns.to(wide) * (torch.pi / 2) / n).cos() * ((1 + (f > 0)).to(wide) / n).sqrt()
        if key_mask is None:
            return C.to(x.dtype), None
        there = f < key_mask.sum(1)[:, None, None]  # (B, m, 1)
        return C.masked_fill(~(there & key_mask.unsqueeze(1)), 0).to(x.dtype), there.squeeze(2)
