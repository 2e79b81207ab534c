"""FAVOR+'s features (Choromanski et al. 2021, "Rethinking Attention with Performers"): random features of softmax.

    x' = x·D^{-1/4},    φ(x)_f = exp(ω_f·x' − ‖x'‖²/2) + ε,    E[φ(q)·φ(k)]/m = exp(q·k/√D) at ε = 0

or, as the generalised attention of the same paper, φ(x) = relu(Ωx') + 10⁻³. ω_f are the rows of Ω (m, D).
"""

import functools
import math

import torch
from torch import Tensor

from .features import LOG2_E, FeatureMap

RELU_FLOOR = 1e-3


class FavorPlusFeatures(FeatureMap):
    """log₂ e · (Ωx' − ‖x'‖²/2), or relu(Ωx') + 10⁻³.

    Args:
        projection: Ω (m, D), float32.
        epsilon: ε of the exponential features.
        relu: the generalised ones instead.
    """

    def __init__(self, projection: Tensor, epsilon: float, relu: bool = False):
        self.projection, self.version = projection, version_of(projection)
        self.scale = projection.shape[1] ** -0.25
        self.half = LOG2_E * self.scale**2 / 2  # of ‖x‖², in log₂ φ
        self.kept: dict[tuple[torch.dtype, bool], Tensor] = {}
        self.stabilised, self.floor, self.relu = not relu, 0.0 if relu else epsilon, relu

    def is_of(self, projection: Tensor) -> bool:
        """Whether it was made of this Ω as it is now."""
        return self.projection is projection and self.version == version_of(projection)

    @functools.cached_property
    def peak(self) -> float:
        """ω·x' − ‖x'‖²/2 = ‖ω‖²/2 − ‖ω − x'‖²/2"""
        if self.projection.is_meta or torch.compiler.is_exporting():  # unknown
            return math.inf
        return float(self.projection.square().sum(-1).max()) / 2

    def matrix(self, dtype: torch.dtype, back: bool = False) -> Tensor:
        """D^{-1/4} Ωᵀ (D, m), times log₂ e where exponents are made of it, or the way back (m, D)"""
        if (dtype, back) not in self.kept:
            matrix = self.projection.to(dtype) * (self.scale if back or self.relu else self.scale * LOG2_E)
            self.kept[dtype, back] = matrix if back else matrix.T.contiguous()
        return self.kept[dtype, back]

    def num_features(self, head_dim: int) -> int:
        return self.projection.shape[0]

    def of_rows(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """(n, D) -> (n, m)"""
        product = torch.mm(x, self.matrix(x.dtype), out=out)
        if self.relu:
            return product.clamp_(min=0).add_(RELU_FLOOR)
        return product.sub_(torch.linalg.vector_norm(x, dim=-1, keepdim=True).square(), alpha=self.half)

    def __call__(self, x: Tensor) -> Tensor:
        return self.of_rows(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], self.projection.shape[0])

    def write(self, x: Tensor, out: Tensor, spare: Tensor) -> None:
        rows = x.reshape(-1, x.shape[-1])
        if out.is_contiguous():
            self.of_rows(rows, out.view(-1, out.shape[-1]))
        else:
            out.copy_(self.of_rows(rows).view(out.shape))

    def vjp(self, x: Tensor, out: Tensor, grad: Tensor, target: Tensor) -> None:
        if self.relu:
            grad.mul_(out > RELU_FLOOR)
        pulled = torch.mm(grad.reshape(-1, grad.shape[-1]), self.matrix(x.dtype, back=True)).view(x.shape)
        if self.relu:
            target.copy_(pulled)
        else:
            torch.addcmul(pulled, grad.sum(-1, keepdim=True), x, value=-(self.scale**2), out=target)


def orthogonal_features(num_features: int, dim: int, norms: str, generator: torch.Generator) -> Tensor:
    """Ω (m, D): blocks of D orthogonal rows, each block Haar-distributed, rows scaled to χ_D or √D."""
    blocks = []
    for _ in range(-(-num_features // dim)):
        q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64, device="cpu"))
        blocks.append((q * r.diagonal().sign()).T)  # QR alone is not Haar: its signs are not random
    rows = torch.cat(blocks)[:num_features]
    if norms == "sqrt":
        return (rows * dim**0.5).float()
    gaussian = torch.randn(num_features, dim, generator=generator, dtype=torch.float64, device="cpu")
    return (rows * gaussian.norm(dim=-1, keepdim=True)).float()


def version_of(x: Tensor) -> int | None:
    """Counts the changes in place, so that what was made of x can be told from what would be made of it now; tensors
    made in inference mode have no such count."""
    return None if x.is_inference() else x._version
