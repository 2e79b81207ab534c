"""Nyström attention (Xiong et al. 2021, "Nyströmformer"): softmax attention through m landmarks.

    o = softmax(q k̃ᵀ) · Z · softmax(q̃ kᵀ) v,    Z ≈ pinv(K),  K = softmax(q̃ k̃ᵀ)

with q and k scaled by D^(−1/4), and q̃, k̃ (B, H, m, D) the means over m segments; token t of n belongs to segment
⌊t·m/n⌋. Z comes from iterating Z ← ¼ Z (13 I − K Z (15 I − K Z (7 I − K Z))) from Z₀ = Kᵀ / (‖K‖₁ ‖K‖∞). Cost
O(N·m·D + m³), in float32. Optionally a depthwise convolution of v along the tokens is added.

The norms in Z₀ are each head's own (the reference takes their maximum over the batch, and so lets batch mates
change each other). n counts a sample's real tokens, and segments left empty are masked, so padding on either side
changes no real token. No more than N landmarks are used; with m = N and an exact inverse it is softmax attention.
Dropout acts on softmax(q̃ kᵀ), the factor that has a weight per key. Rows sum to 1 but may be negative.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..linear.autocast import without_autocast
from .base import Attention, check_positive
from .masking import masked_softmax, zero_masked
from .registry import register_attention
from .softmax import softmax_attention


@register_attention
class Nystrom(Attention):
    """Softmax attention approximated from the means of token segments.

    Args:
        num_landmarks: m.
        pinv_iterations: of the pseudo-inverse.
        conv_kernel: width of the convolution of v, odd; 0 = none.
    """

    paper = "Xiong 2021"
    cost = "NmD"
    parameter_free = True
    exempt_from = ("row_sums", "permutation")

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_landmarks: int = 64,
        pinv_iterations: int = 6,
        conv_kernel: int = 0,
        **common,
    ):
        super().__init__(hidden_size, num_heads, **common)
        check_positive("num_landmarks", num_landmarks)
        check_positive("pinv_iterations", pinv_iterations)
        if isinstance(conv_kernel, bool) or not isinstance(conv_kernel, int) or conv_kernel < 0:
            raise ValueError(f"conv_kernel={conv_kernel!r} must be an odd integer, or 0 for none.")
        if conv_kernel and conv_kernel % 2 == 0:
            raise ValueError(f"conv_kernel={conv_kernel} must be odd, to be centred on a token; 0 = none.")
        self.num_landmarks, self.pinv_iterations, self.conv_kernel = num_landmarks, pinv_iterations, conv_kernel
        if conv_kernel:
            self.conv_weight = nn.Parameter(torch.empty(num_heads, conv_kernel))
            self.reset_parameters()

    def reset_parameters(self):
        if self.conv_kernel:
            nn.init.trunc_normal_(self.conv_weight, std=0.02)

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        dtype, dropout = v.dtype, self.dropout if self.training else 0.0
        with without_autocast(v):
            q, k, v = self._scaled(q, key_mask), self._scaled(k, key_mask), zero_masked(_wide(v), key_mask)
            segment, count = self._segments(q, key_mask)
            q_mean, k_mean = _segment_means(q, segment, count), _segment_means(k, segment, count)
            filled = count > 0  # (B, m); the others' rows and columns are zero, in the pseudo-inverse too
            K = masked_softmax(q_mean @ k_mean.mT, (filled.unsqueeze(1) & filled.unsqueeze(2)).unsqueeze(1))
            seen = softmax_attention(q_mean, k, v, key_mask=key_mask, scale=1.0, dropout=dropout)  # (B, H, m, D)
            filled = None if key_mask is None else filled
            output = softmax_attention(q, k_mean, self._pinv(K) @ seen, key_mask=filled, scale=1.0)
            if self.conv_kernel:
                kernel = self.conv_weight.to(v.dtype)[:, None, :, None]
                output = output + F.conv2d(v, kernel, padding=(self.conv_kernel // 2, 0), groups=self.num_heads)
        return output.to(dtype)

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        dtype, length = q.dtype, q.shape[2]
        with without_autocast(q):
            q, k = self._scaled(q, key_mask), self._scaled(k, key_mask)
            segment, count = self._segments(q, key_mask)
            member = segment.unsqueeze(1) == torch.arange(count.shape[1], device=q.device)[:, None]  # (B, m, N)
            if key_mask is not None:
                member = member & key_mask.unsqueeze(1)
            mean = (member.to(q.dtype) / member.sum(-1, keepdim=True).clamp_min(1)).unsqueeze(1)
            filled = member.any(-1)[:, None, None]  # (B, 1, 1, m)
            q_mean, k_mean = mean @ q, mean @ k
            i = torch.arange(length, device=q.device) if rows is None else rows
            left = masked_softmax(q[:, :, i] @ k_mean.mT, filled)
            middle = masked_softmax(q_mean @ k_mean.mT, filled & filled.mT)
            right = masked_softmax(q_mean @ k.mT, None if key_mask is None else key_mask[:, None, None])
            matrix = left @ self._pinv(middle) @ right
            if self.conv_kernel:
                tap = torch.arange(length, device=q.device) - i[:, None] + self.conv_kernel // 2
                inside = (tap >= 0) & (tap < self.conv_kernel)
                if key_mask is not None:
                    inside = inside & key_mask[:, None, None]
                taps = self.conv_weight.to(q.dtype)[:, tap.clamp(0, self.conv_kernel - 1)]  # (H, S, N)
                matrix = matrix + taps * inside
        return matrix.to(dtype)

    def _scaled(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        return zero_masked(_wide(x), key_mask) * self.head_dim**-0.25

    def _segments(self, x: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The segment of every token (B, N), and how many real tokens each segment has (B, m)."""
        batch, _, length, _ = x.shape
        real = x.new_ones(batch, length, dtype=torch.long) if key_mask is None else key_mask.long()
        landmarks = min(self.num_landmarks, length)
        token = (real.cumsum(1) - 1).clamp_min(0)
        segment = token * landmarks // real.sum(1, keepdim=True).clamp_min(1)
        return segment, real.new_zeros(batch, landmarks).scatter_add_(1, segment, real)

    def _pinv(self, K: Tensor) -> Tensor:
        norms = K.sum(-2).amax(-1) * K.sum(-1).amax(-1)  # (B, H); 0 where every token is masked
        Z = K.mT / norms.clamp_min(torch.finfo(K.dtype).tiny)[..., None, None]
        I = torch.eye(K.shape[-1], device=K.device, dtype=K.dtype)
        for _ in range(self.pinv_iterations):
            KZ = K @ Z
            Z = Z @ (13 * I - KZ @ (15 * I - KZ @ (7 * I - KZ))) / 4
        return Z


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _segment_means(x: Tensor, segment: Tensor, count: Tensor) -> Tensor:
    """(B, H, N, D), zero at masked tokens -> (B, H, m, D)"""
    (batch, heads, _, width), landmarks = x.shape, count.shape[1]
    index = segment + landmarks * torch.arange(batch, device=x.device)[:, None]
    sums = x.new_zeros(batch * landmarks, heads * width)
    sums = sums.index_add(0, index.flatten(), x.transpose(1, 2).reshape(-1, heads * width))
    return sums.view(batch, landmarks, heads, width).transpose(1, 2) / count.clamp_min(1)[:, None, :, None]
