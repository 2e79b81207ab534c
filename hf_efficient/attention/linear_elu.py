"""Linear attention with φ(x) = elu(x) + 1 (Katharopoulos et al. 2020, "Transformers are RNNs").

o_i = φ(q_i)·Σ_j φ(k_j) v_jᵀ / (φ(q_i)·Σ_j φ(k_j) + 10⁻⁶),    F = D
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import register_attention
from .feature_map import LOG2_E, FeatureMap
from .kernel import KernelAttention


class EluFeatures(FeatureMap):
    """elu(x) + 1 = e^min(x, 0) + max(x, 0): an exponential is several times faster than elu's expm1."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.clamp(max=0).exp() + x.clamp(min=0)

    def write(self, x: Tensor, out: Tensor, spare: Tensor) -> None:
        torch.clamp(x, max=0, out=out).mul_(LOG2_E).exp2_()
        out.add_(torch.clamp(x, min=0, out=spare))

    def vjp(self, x: Tensor, out: Tensor, grad: Tensor, target: Tensor) -> None:
        torch.mul(grad, out.clamp(max=1), out=target)


@register_attention
class LinearElu(KernelAttention):
    """The plain linear transformer; no parameters beyond the projections."""

    paper = "Katharopoulos 2020"
    cost = "ND²"
    parameter_free = True

    eps = 1e-6

    def __init__(self, hidden_size: int, num_heads: int, **common):
        super().__init__(hidden_size, num_heads, **common)
        self.feature_map = EluFeatures()

    def literal_features(self, q, k, key_mask, position_ids):
        return F.elu(q) + 1, F.elu(k) + 1
