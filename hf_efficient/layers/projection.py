"""A linear map that is quick for a single token: what decoding spends its time on is reading weights."""

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


class Projection(Conv1D):
    """y = x W + b, with W stored (in, out) as GPT-2's, so that one token reads it in long rows.

    One token's product is made of two halves of W side by side, one per core: libraries leave a matrix-vector product
    to a single core, which can't read memory as fast as two.

    Args:
        out_features, in_features: in this order, as `Conv1D` has them.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() != self.nx or self.nx % 2 or not x.is_cpu or torch.compiler.is_compiling():
            return super().forward(x)
        halves = torch.bmm(x.reshape(2, 1, -1), self.weight.view(2, -1, self.nf))  # (2, 1, out)
        return halves.sum(0).add_(self.bias).view(*x.shape[:-1], self.nf)


def use_linear_layers(model: nn.Module) -> nn.Module:
    """Puts an `nn.Linear` of equal weights in the place of every `Projection`, and returns the model: quantisation
    knows no other layer. It is for inference; save the model before, as checkpoints hold projections."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is Projection:
                linear = nn.Linear(child.nx, child.nf, device="meta")
                linear.weight, linear.bias = nn.Parameter(child.weight.detach().mT.contiguous()), child.bias
                setattr(parent, name, linear.train(child.training))
    return model
