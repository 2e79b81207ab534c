"""Linear maps that are quick for a single token: what decoding spends its time on is reading weights.

Memory is read fastest in long rows, and by both cores. So a map to more channels is stored (in, out), one to fewer
(out, in), and one token's product is made of two halves of the weight side by side: libraries leave a matrix-vector
product to a single core.
"""

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


def in_halves(x: Tensor, features: int) -> bool:
    """Whether x is one token, and the halves of so many features worth a batch of two."""
    return x.numel() == x.shape[-1] and not features % 2 and x.is_cpu and not torch.compiler.is_compiling()


class Projection(Conv1D):
    """y = x W + b, with W stored (in, out) as GPT-2's.

    Args:
        out_features, in_features: in this order, as `Conv1D` has them.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not in_halves(x, self.nx):
            return super().forward(x)
        halves = torch.bmm(x.reshape(2, 1, -1), self.weight.view(2, -1, self.nf))  # (2, 1, out)
        return halves.sum(0).add_(self.bias).view(*x.shape[:-1], self.nf)


class NarrowProjection(nn.Linear):
    """y = W x + b, with W stored (out, in) as `nn.Linear`'s, which it is."""

    def forward(self, x: Tensor) -> Tensor:
        if not in_halves(x, self.out_features) or type(self.weight) is not nn.Parameter:  # quantised, sharded
            return super().forward(x)
        weight, bias = self.weight.view(2, -1, self.in_features), self.bias.view(2, 1, -1)
        return torch.baddbmm(bias, x.reshape(1, 1, -1).expand(2, 1, -1), weight.mT).view(*x.shape[:-1], -1)


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
