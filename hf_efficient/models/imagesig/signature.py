"""Signatures of paths (Chen 1957; Lyons 1998), of paths through the colours of an image's rows (Ibrahim & Lyons 2022).

The signature of a path x through d dimensions is the sequence of its iterated integrals,

    S(x) = (S¹, S², ...),    S^k = ∫_{t₁<...<t_k} dx_{t₁} ⊗ ... ⊗ dx_{t_k},  d^k numbers,

here up to a depth. It does not depend on where the path begins, nor on how fast it is walked: a repeated pixel changes
nothing. For a straight line of step Δ it is exp_⊗(Δ) = (Δ, Δ²/2!, Δ³/3!, ...), and Chen's identity
S(x ⋆ y) = S(x) ⊗ S(y) makes of them the signature of a path of straight lines:

    S^k_m = S^k_{m−1} + Σ_{i=1..k} S^{k−i}_{m−1} ⊗ Δ_m^i / i!

All steps m are computed at once: level k is a sum over steps of what the levels below were before each.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...layers.constants import constant

LARGEST = 4096.0  # colours from 0 to 1 stay far below; beyond, half precision would overflow


def signature(path: Tensor, depth: int) -> Tensor:
    """Points (..., M + 1, d) -> (..., d + d² + ... + d^depth), level after level, words in lexicographic order"""
    steps = path.diff(dim=-2).mT.contiguous()  # Δ (..., d, M)
    levels, before = [], []  # before[j]: level j + 1 as it was before each step, (..., d^(j+1), M)
    for level in range(1, depth + 1):
        head = torch.ones_like(steps[..., :1, :])  # the sum over i without its last factor Δ, by Horner's rule
        for j, past in enumerate(before):
            head = past + tensor_product(head, steps / (level - j))
        levels.append((head @ steps.mT).flatten(-2))
        if level < depth:
            before.append(F.pad(tensor_product(head, steps).cumsum(-1)[..., :-1], (1, 0)))
    return torch.cat(levels, -1)


def tensor_product(x: Tensor, y: Tensor) -> Tensor:
    """(..., p, M), (..., d, M) -> (..., p·d, M)"""
    return (x.unsqueeze(-2) * y.unsqueeze(-3)).flatten(-3, -2)


def signature_width(channels: int, depth: int) -> int:
    """d + d² + ... + d^depth: 120 of three colours at depth 4"""
    return sum(channels**level for level in range(1, depth + 1))


class ImageSignatures(nn.Module):
    """The signatures of an image's rows, left to right, and with `two_directions` of its columns, top to bottom.

    There is nothing to learn in them: what reads images may compute them once (`name` is their argument's name in the
    model's forward, `identity` says all that they depend on beside the pixels).

    Args:
        scale: what normalised pixels are multiplied with, for each channel, to be colours from 0 to 1 again.
        rescale_levels: level k times k!, so that all levels are about equally large.
    """

    name = "signatures"

    def __init__(
        self, depth: int, scale: tuple[float, ...], two_directions: bool = False, rescale_levels: bool = False
    ):
        super().__init__()
        self.depth, self.scale = depth, tuple(scale)
        self.two_directions, self.rescale_levels = two_directions, rescale_levels

    @property
    def identity(self) -> str:
        return f"signatures {self.depth} {self.scale} {self.two_directions} {self.rescale_levels}"

    def forward(self, pixel_values: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, H, width), or (B, H + W, width) with two directions; in float32 or more"""
        x = pixel_values.to(torch.promote_types(pixel_values.dtype, torch.float32))
        colours = x * constant(self.scale, x).view(-1, 1, 1)
        found = signature(colours.permute(0, 2, 3, 1), self.depth)
        if self.two_directions:
            found = torch.cat([found, signature(colours.permute(0, 3, 2, 1), self.depth)], 1)
        if self.rescale_levels:
            levels = found.split([len(self.scale) ** level for level in range(1, self.depth + 1)], -1)
            found = torch.cat([math.factorial(level) * part for level, part in enumerate(levels, 1)], -1)
        return found.clamp(-LARGEST, LARGEST)

    def extra_repr(self) -> str:
        return f"depth={self.depth}, two_directions={self.two_directions}"
