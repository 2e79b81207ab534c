"""FNet (Lee-Thorp et al. 2021): tokens are mixed by a Fourier transform; nothing is learned.

    y = Re FFT_N(FFT_d(x)) = C_N x C_d − S_N x S_d,    C_N[m, n] = cos(2π mn / N), S_N likewise with sin

over the sequence and the channels, unnormalised. O(N·d·log(N·d)). Padding is zeroed, but N itself enters the
transform: padded inputs come out differently. Not causal.
"""

import torch
from torch import Tensor

from .base import Attention, AttentionOutput
from .masking import zero_masked
from .registry import register_attention


@register_attention
class Fnet(Attention):
    """Works on hidden states: it has no projections and no heads."""

    paper = "Lee-Thorp 2021"
    cost = "Nd log Nd"
    exempt_from = ("permutation", "padding")
    per_head = False

    def build_projections(self, bias, output_bias):
        pass

    def forward(self, hidden_states, key_mask=None, position_ids=None, *more, **named):
        self.check_inputs(hidden_states, key_mask, position_ids, *more, **named)
        x = zero_masked(hidden_states.unsqueeze(1), key_mask).squeeze(1)
        wide = torch.promote_types(x.dtype, torch.float32)  # there is no half-precision transform on a CPU
        output = torch.fft.fft2(x.to(wide)).real.to(x.dtype)
        return AttentionOutput(self.output_dropout(output))

    def naive(self, hidden_states, key_mask=None, position_ids=None):
        x = zero_masked(hidden_states.unsqueeze(1), key_mask).squeeze(1)
        tokens, channels = fourier_angles(x.shape[1], x), fourier_angles(x.shape[2], x)
        return tokens.cos() @ x @ channels.cos() - tokens.sin() @ x @ channels.sin()


def fourier_angles(size: int, like: Tensor) -> Tensor:
    """2π mn / size, (size, size)"""
    n = torch.arange(size, device=like.device)
    return (torch.outer(n, n) % size).to(like.dtype) * (2 * torch.pi / size)
