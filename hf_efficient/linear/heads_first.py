"""From what projections leave behind, (B, N, H, D) in memory, to what the engine reads without a copy: heads first.

The change of order costs no pass of its own, there or back.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def scale_tokens(x: Tensor, s: Tensor) -> Tensor:
    """x (B, H, N, D) times s (B, H, N)"""
    return x * s.unsqueeze(-1) if torch.compiler.is_compiling() else _ScaledTokens.apply(x, s)


def turn_tokens(x: Tensor, angles: Tensor) -> Tensor:
    """[x cos, x sin] (B, H, N, 2D) of x (B, H, N, D) and angles (B, 1, N, 1), which are not differentiated"""
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([x * cos, x * sin], -1) if torch.compiler.is_compiling() else _TurnedTokens.apply(x, cos, sin)


class _ScaledTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(x, s)
        return torch.mul(x, s.unsqueeze(-1), out=x.new_empty(x.shape))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, s = ctx.saved_tensors
        product = torch.mul(grad, x, out=_projected(grad))
        ds = product.sum(-1)
        return torch.mul(grad, s.unsqueeze(-1), out=product), ds


class _TurnedTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        out = x.new_empty(*x.shape[:3], 2 * x.shape[3])
        for half, factor in zip(out.chunk(2, -1), (cos, sin), strict=True):
            torch.mul(x, factor, out=half)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        first, second = grad.chunk(2, -1)
        return torch.mul(first, cos, out=_projected(first)).addcmul_(second, sin), None, None


def _projected(x: Tensor) -> Tensor:
    """An empty tensor like x (B, H, N, D), in memory (B, N, H, D)"""
    return x.new_empty(x.transpose(1, 2).shape).transpose(1, 2)
