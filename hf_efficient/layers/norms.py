"""Norms by name: "layer" by mean and variance, "rms" (Zhang and Sennrich 2019) by the root mean square, no bias."""

from torch import nn

NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


def head_norm(head_dim: int, eps: float | None) -> nn.Module:
    """Of queries or keys (..., D), with a gain per channel (Henry et al. 2020); nothing where eps is None."""
    return nn.Identity() if eps is None else nn.RMSNorm(head_dim, eps)
