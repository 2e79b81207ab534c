"""A copy of a model for inference: the same outputs with less work, on the same modules.

BatchNorm, its statistics fixed, is a linear map and goes into the convolution before it. Activations overwrite their
input. Large batches run in slices: maps of many megabytes cost more to allocate than to compute.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from .configuration_mobilevit_v2 import MobileViTv2Config
from .convolution import ConvLayer, PointwiseConv2d

SLICE_BYTES = 32 * 2**20  # of the largest map


@torch.no_grad()
def fuse(model: nn.Module) -> nn.Module:
    """A fused copy in evaluation mode; the model itself is left as it is."""
    fused = copy.deepcopy(model).eval().requires_grad_(False)
    for module in fused.modules():
        if isinstance(module, ConvLayer):
            fold_batch_norm(module)
            if isinstance(module.activation, nn.SiLU | nn.ReLU):
                module.activation = type(module.activation)(inplace=True)
        if isinstance(module, PointwiseConv2d):
            set_weights(module, by_columns(module.weight), module.bias)
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout | nn.Dropout2d):
                setattr(module, name, nn.Identity())
    fused.is_fused = True
    return fused


def fold_batch_norm(layer: ConvLayer) -> None:
    """y = (w ∗ x + b − mean) · s + shift = (w s) ∗ x + (b − mean) · s + shift, with s = scale / √(variance + ε)"""
    norm, convolution = layer.normalization, layer.convolution
    if norm is None or not isinstance(convolution, nn.Conv2d):  # an adapter around it
        return
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    bias = -norm.running_mean if convolution.bias is None else convolution.bias - norm.running_mean
    set_weights(convolution, convolution.weight * scale.view(-1, 1, 1, 1), bias * scale + norm.bias)
    layer.normalization = None


def set_weights(convolution: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> None:
    convolution.weight = nn.Parameter(weight, requires_grad=False)
    convolution.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)


def by_columns(weight: Tensor) -> Tensor:
    """The same numbers, a column after the other: products with few tokens read them faster so."""
    return weight.transpose(0, 1).contiguous().transpose(0, 1)


def run_in_slices(run: Callable, config: MobileViTv2Config, *args, **kwargs):
    """`run(*args, **kwargs)`, a few images at a time if nothing but images is given."""
    (pixel_values, *others), named = (args, kwargs) if args else ((kwargs.get("pixel_values"),), kwargs)
    named = {key: value for key, value in named.items() if key != "pixel_values"}
    batched = [x for x in (*others, *named.values()) if isinstance(x, Tensor | list)]
    if not isinstance(pixel_values, Tensor) or pixel_values.dim() != 4 or batched:
        return run(*args, **kwargs)
    rows, columns = pixel_values.shape[2:]
    largest = config.stage_widths[1] * rows * columns / 2 * pixel_values.element_size()  # bytes of a map in stage 2
    slices = pixel_values.split(max(1, int(SLICE_BYTES / max(largest, 1))))
    return concatenate([run(part, *others, **named) for part in slices])


def concatenate(outputs: list):
    """Outputs of several batches as one: tensors along the batch, whatever holds them entry by entry."""
    first = outputs[0]
    if len(outputs) == 1 or first is None:
        return first
    if isinstance(first, Tensor):
        return torch.cat(outputs)
    if isinstance(first, ModelOutput):
        return type(first)(**{key: concatenate([output[key] for output in outputs]) for key in first})
    return type(first)(concatenate(list(entries)) for entries in zip(*outputs, strict=True))
