"""From what projections leave behind, (B, N, H, D) in memory, to what the engine reads without a copy: heads first."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def scale_tokens(x: Tensor, s: Tensor) -> Tensor:
    """x (B, H, N, D) times s (B, H, N), heads first in memory: the change of order costs no pass of its own."""
    return x * s.unsqueeze(-1) if torch.compiler.is_compiling() else _ScaledTokens.apply(x, s)


class _ScaledTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(x, s)
        return torch.mul(x, s.unsqueeze(-1), out=x.new_empty(x.shape))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, s = ctx.saved_tensors
        product = torch.mul(grad, x, out=grad.new_empty(grad.transpose(1, 2).shape).transpose(1, 2))
        ds = product.sum(-1)
        return torch.mul(grad, s.unsqueeze(-1), out=product), ds
