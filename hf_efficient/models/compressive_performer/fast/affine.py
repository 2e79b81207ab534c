"""y = x Wᵀ + b by oneDNN, where PyTorch would call MKL.

PyTorch ships both libraries and on x86 hands products of float32 matrices to MKL, which was not made for AMD's
processors: there oneDNN is faster for the sizes of a language model. (On Intel's not measured.) All else, and all that
is traced, compiled or counted, goes through `F.linear`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .switch import is_on

AVAILABLE = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability().startswith("AVX")

# Multiplications from which on oneDNN's longer preparation pays.
WORTHWHILE = 2**23


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (..., in), weight (out, in), bias (out,) -> (..., out)"""
    if not _is_for_onednn(x, weight):
        return F.linear(x, weight, bias)
    return _Affine.apply(x, weight, bias) if torch.is_grad_enabled() else _product(x, weight, bias)


def _is_for_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        is_on()
        and AVAILABLE
        and x.is_cpu
        and x.dtype == weight.dtype == torch.float32
        and x.numel() * weight.shape[0] >= WORTHWHILE
        and type(x) in (Tensor, nn.Parameter)  # no sharded or quantised tensor
        and type(weight) in (Tensor, nn.Parameter)
        and torch.backends.mkldnn.enabled
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._len_torch_dispatch_stack()
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if not (weight.is_contiguous() or weight.mT.is_contiguous()):  # oneDNN takes seconds for other strides
        weight = weight.mT.contiguous().mT if weight.stride(0) == 1 else weight.contiguous()
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        needed_x, needed_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needed_weight else None, weight if needed_x else None)
        ctx.shape, ctx.rowwise = x.shape, weight.is_contiguous()
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grads, dx, dw = grad.reshape(-1, grad.shape[-1]), None, None
        if weight is not None:
            dx = _product(grads, weight.mT).view(ctx.shape)
        if x is not None:  # dL/dW is laid out as the weight is
            rows = x.reshape(-1, ctx.shape[-1])
            dw = _product(grads.mT, rows.mT) if ctx.rowwise else _product(rows.mT, grads.mT).mT
        return dx, dw, grads.sum(0) if ctx.needs_input_grad[2] else None
