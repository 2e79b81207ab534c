"""Linear maps that are quick for a single token: what decoding spends its time on is reading weights.

Memory is read fastest in long rows, and by both cores. So a map to more channels is stored (in, out), one to fewer
(out, in), and one token's product is made of two halves of the weight side by side: libraries leave a matrix-vector
product to a single core. The halves make a token 1.25 times as fast.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Transpose, WeightConverter
from transformers.pytorch_utils import Conv1D

from ....attention.bypass import can_bypass
from .switch import is_on

NARROW = "mlp.fc2.weight"


class TransposeOlder(Transpose):
    """As a list, as weights are read: transformers' step for quanto would take the first row of a tensor for it."""

    def convert(self, *args, **kwargs) -> dict[str, list[Tensor]]:
        return {name: [x] for name, x in super().convert(*args, **kwargs).items()}


@cache
def read_older_checkpoints() -> None:
    """Those of before `fc2` was stored (out, in); those of today pass unchanged.

    Called by the first model: at import, transformers' table of all its conversions would cost everybody 0.1 s.
    """
    conversion = WeightConverter(NARROW, NARROW, [TransposeOlder(check_dims=True)])
    register_checkpoint_conversion_mapping("compressive_performer", [conversion], overwrite=True)


class Projection(Conv1D):
    """y = x W + b, with W stored (in, out) as GPT-2's.

    Args:
        out_features, in_features: in this order, as `Conv1D` has them.
        parts: what the outputs are made of, if they are several matrices' (`training/optimizers.py`).
    """

    def __init__(self, out_features: int, in_features: int, parts: list[int] | None = None):
        super().__init__(out_features, in_features)
        self.output_sizes = parts

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.mT, self.bias)  # of any strides, which `Conv1D` refuses

    def at_hand(self) -> Callable[[Tensor], Tensor]:
        """The same for (B, in), without gradients, its weight fetched and cut once: for steps of decoding."""
        weight, bias = self.weight.detach(), self.bias.detach()
        if self.nx % 2 or not weight.is_cpu:
            return lambda x: torch.addmm(bias, x, weight)
        halves = weight.view(2, -1, self.nf)

        def product(x: Tensor) -> Tensor:
            if len(x) > 1:
                return torch.addmm(bias, x, weight)
            return torch.bmm(x.view(2, 1, -1), halves).sum(0).add_(bias)

        return product


class NarrowProjection(nn.Linear):
    """y = W x + b, with W stored (out, in) as `nn.Linear`'s, which it is."""

    def at_hand(self) -> Callable[[Tensor], Tensor]:
        """As `Projection.at_hand`."""
        weight, bias = self.weight.detach(), self.bias.detach()
        if self.out_features % 2 or not weight.is_cpu:
            return lambda x: F.linear(x, weight, bias)
        halves, biases = weight.view(2, -1, self.in_features).mT, bias.view(2, 1, -1)

        def product(x: Tensor) -> Tensor:
            if len(x) > 1:
                return F.linear(x, weight, bias)
            return torch.baddbmm(biases, x.expand(2, 1, -1), halves).view(1, -1)

        return product


def project_from(layer: nn.Module, x: Tensor, start: int) -> Tensor:
    """The output channels of a projection from `start` on: (..., in) -> (..., out - start)

    Only those are computed where the weight may be used without calling the layer: 12 % of a training step, 10 % of a
    prompt.
    """
    if start and is_on() and can_bypass(layer, Projection):
        return F.linear(x, layer.weight[:, start:].mT, layer.bias[start:])
    return layer(x)[..., start:]


def weights_version(*layers: nn.Module) -> tuple:
    """Differs when an output for the same input may: after a step of training, with another adapter."""
    return tuple(map(_version, layers))


def _version(layer: nn.Module) -> tuple:
    if type(layer) in (Projection, nn.RMSNorm):
        return id(layer), _changes(layer.weight)
    adapters = getattr(layer, "disable_adapters", None), *getattr(layer, "active_adapters", ())
    return id(layer), *map(_changes, layer.parameters()), *adapters


def _changes(x: Tensor) -> int | None:
    """How often x was changed in place; tensors made in inference mode have no such count."""
    return None if x.is_inference() else x._version


def use_linear_layers(model: nn.Module) -> nn.Module:
    """Puts an `nn.Linear` of equal weights in the place of every projection, and returns the model: quantisation
    knows no other layer. It is for inference; save the model before, as checkpoints hold projections."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) in (Projection, NarrowProjection):
                weight = child.weight.mT.contiguous() if type(child) is Projection else child.weight
                linear = nn.Linear(*weight.mT.shape, device="meta")
                linear.weight, linear.bias = nn.Parameter(weight.detach()), child.bias
                setattr(parent, name, linear.train(child.training))
    return model
