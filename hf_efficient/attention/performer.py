"""FAVOR+ (Choromanski et al. 2021, "Rethinking Attention with Performers"): random features of the softmax kernel.

    x' = x·D^{-1/4},    φ(x)_f = exp(ω_f·x' − ‖x'‖²/2) + ε,    E[φ(q)·φ(k)]/m = exp(q·k/√D) at ε = 0

ω are rows of a persistent float32 buffer Ω (m, D): blocks of D orthogonal rows (QR of a Gaussian, signs corrected so
that the blocks are Haar-distributed; the usual code skips that and is biased by a tenth), with norms χ_D or √D. Ω is
drawn from (seed, layer, redraw), so ranks agree, and redrawn every `redraw_interval` training forwards.

log φ is at most ‖ω‖²/2, which for heads of up to about 80 channels is in float32's range: nothing needs stabilising.
Beyond that, or with ε = 0, the stabiliser is a running maximum per feature (`linear/stabilise.py`). The usual one, a
maximum over all keys to which 10⁻⁴ is then added, lets future keys move past outputs. ε is absolute here: at 0 the
estimate is unbiased; larger values trade bias for variance. With unit-variance q and k at D = 64 and m = 266 the error
against softmax exceeds 100 %: this is a kernel of its own rather than a stand-in for softmax, unless ‖q‖ and ‖k‖ are
small or m is large.

`features="relu"`: φ(x) = relu(Ωx') + 10⁻³, the generalised attention of the same paper.
"""

import math

import torch

from ..linear.favor_plus import RELU_FLOOR, FavorPlusFeatures, orthogonal_features
from ..linear.features import FeatureMap
from .base import check_choice, check_positive
from .random_features import RandomFeatures
from .registry import register_attention


@register_attention
class Performer(RandomFeatures):
    """
    Args:
        num_features: m, by default ⌊D ln D⌋.
        features: "positive" (softmax kernel) or "relu".
        epsilon: ε of the positive features.
        norms: "chi" (as Gaussian rows) or "sqrt" (√D, lower variance).
    """

    paper = "Choromanski 2021"
    cost = "NmD"
    parameter_free = True
    supports_cross = True

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_features: int | None = None,
        features: str = "positive",
        epsilon: float = 1e-3,
        norms: str = "chi",
        **common,
    ):
        super().__init__(hidden_size, num_heads, **common)
        self._map = None
        check_choice("features", features, ("positive", "relu"))
        check_choice("norms", norms, ("chi", "sqrt"))
        if not isinstance(epsilon, (int, float)) or not 0 <= epsilon < math.inf:
            raise ValueError(f"epsilon={epsilon!r} must be 0 or a positive number.")
        if num_features is None:
            num_features = max(1, int(self.head_dim * math.log(self.head_dim)))
        check_positive("num_features", num_features)
        self.num_features, self.features, self.epsilon, self.norms = num_features, features, float(epsilon), norms
        self.add_projection(num_features, self.head_dim)
        self.reset_parameters()

    def draw(self, generator):
        return orthogonal_features(self.num_features, self.head_dim, self.norms, generator)

    @property
    def feature_map(self) -> FeatureMap:
        if self._map is None or torch.compiler.is_compiling() or not self._map.is_of(self.projection):
            self._map = FavorPlusFeatures(self.projection, self.epsilon, self.features == "relu")
        return self._map

    @feature_map.setter
    def feature_map(self, _) -> None:
        """The map follows the projection buffer, wherever that is moved."""

    def literal_features(self, q, k, key_mask, position_ids):
        if self.features == "relu":
            return tuple(
                (x * self.head_dim**-0.25 @ self.projection.to(x.dtype).T).relu() + RELU_FLOOR for x in (q, k)
            )
        phi = []
        for x in (q, k):
            x = x * self.head_dim**-0.25
            phi.append(x @ self.projection.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2)
        return tuple(a.exp() + self.epsilon for a in phi)
