"""y = x Wᵀ + b, or f(x) Wᵀ + b, by oneDNN, where PyTorch would call MKL.

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


def activated_affine(activation: nn.Module, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same of f(x), for an f without parameters, which is computed again in the backward pass instead of kept:
    next to the products it costs nothing, and x has to be kept anyway."""
    if not torch.is_grad_enabled() or not _is_for_onednn(x, weight):
        return affine(activation(x), weight, bias)
    return _ActivatedAffine.apply(activation, x, weight, bias)


def _is_for_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        AVAILABLE
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
        return _backward(grad, x, weight, ctx.rowwise, ctx.shape, ctx.needs_input_grad[2])


class _ActivatedAffine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, activation, x, weight, bias):
        ctx.activation, ctx.rowwise = activation, weight.is_contiguous()
        ctx.save_for_backward(x, weight)
        return _product(activation(x), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        _, needed_x, needed_weight, needed_bias = ctx.needs_input_grad
        with torch.enable_grad():
            x = x.detach().requires_grad_(needed_x)
            activated = ctx.activation(x)
        given = activated.detach() if needed_weight else None, weight if needed_x else None
        dx, dw, db = _backward(grad, *given, ctx.rowwise, x.shape, needed_bias)
        if needed_x:
            (dx,) = torch.autograd.grad(activated, x, dx)
        return None, dx, dw, db


def _backward(
    grad: Tensor, x: Tensor | None, weight: Tensor | None, rowwise: bool, shape: torch.Size, needed_bias: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dL/dy -> dL/dx, of this shape, if the weight is given, dL/dW, laid out as the weight is, if x is, and dL/db"""
    grads, dx, dw = grad.reshape(-1, grad.shape[-1]), None, None
    if weight is not None:
        dx = _product(grads, weight.mT).view(shape)
    if x is not None:
        rows = x.reshape(-1, shape[-1])
        dw = _product(grads.mT, rows.mT) if rowwise else _product(rows.mT, grads.mT).mT
    return dx, dw, grads.sum(0) if needed_bias else None
