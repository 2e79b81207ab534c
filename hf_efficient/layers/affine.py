"""y = x Wᵀ + b by oneDNN, where PyTorch would call MKL.

PyTorch ships both libraries and on x86 hands products of float32 matrices to MKL, which was not made for AMD's
processors: there oneDNN is faster for the sizes of a language model. (On Intel's not measured.) All else, and all that
is traced, compiled or counted, goes through `F.linear`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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
        AVAILABLE
        and x.is_cpu
        and x.dtype == weight.dtype == torch.float32
        and x.numel() * weight.shape[0] >= WORTHWHILE
        and type(x) in (Tensor, nn.Parameter)  # no sharded or quantised tensor
        and type(weight) in (Tensor, nn.Parameter)
        and (weight.is_contiguous() or weight.mT.is_contiguous())  # oneDNN takes seconds for other strides
        and torch.backends.mkldnn.enabled
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._len_torch_dispatch_stack()
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = _product(grads, weight.mT).view(x.shape)
        if ctx.needs_input_grad[1]:  # laid out as the weight is
            dw = _product(grads.mT, rows.mT) if weight.is_contiguous() else _product(rows.mT, grads.mT).mT
        if ctx.needs_input_grad[2]:
            db = grads.sum(0)
        return dx, dw, db
