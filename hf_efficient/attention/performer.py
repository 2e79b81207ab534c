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
import random

import torch

from ..linear.favor_plus import RELU_FLOOR, FavorPlusFeatures, orthogonal_features
from ..linear.features import FeatureMap
from .base import check_choice, check_positive
from .counter import Counter
from .kernel_attention import KernelAttention
from .registry import register_attention


@register_attention
class Performer(KernelAttention):
    """
    Args:
        num_features: m, by default ⌊D ln D⌋.
        features: "positive" (softmax kernel) or "relu".
        epsilon: ε of the positive features.
        norms: "chi" (as Gaussian rows) or "sqrt" (√D, lower variance).
        redraw_interval: training forwards between redraws of Ω; 0 = never.
        seed: of Ω, together with the layer index and the number of redraws.
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
        redraw_interval: int = 1000,
        seed: int = 0,
        **common,
    ):
        super().__init__(hidden_size, num_heads, **common)
        self._map = None
        check_choice("features", features, ("positive", "relu"))
        check_choice("norms", norms, ("chi", "sqrt"))
        if not isinstance(epsilon, (int, float)) or not 0 <= epsilon < math.inf:
            raise ValueError(f"epsilon={epsilon!r} must be 0 or a positive number.")
        if isinstance(redraw_interval, bool) or not isinstance(redraw_interval, int) or redraw_interval < 0:
            raise ValueError(f"redraw_interval={redraw_interval!r} must be a number of forwards, or 0 for never.")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed={seed!r} must be a non-negative integer.")
        if num_features is None:
            num_features = max(1, int(self.head_dim * math.log(self.head_dim)))
        check_positive("num_features", num_features)
        self.num_features, self.features, self.epsilon, self.norms = num_features, features, float(epsilon), norms
        self.redraw_interval, self.seed = redraw_interval, seed
        self.register_buffer("projection", torch.empty(num_features, self.head_dim, dtype=torch.float32))
        self.register_buffer("forwards", torch.zeros((), dtype=torch.long))
        self.counter = Counter()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.forwards.zero_()
        self.redraw(0)

    def redraw(self, index: int) -> None:
        """Ω number `index`: the same on every rank and after every resume."""
        if self.projection.is_meta:
            return
        generator = torch.Generator().manual_seed(
            random.Random(f"{self.seed}/{self.layer_idx}/{index}").getrandbits(63)
        )
        drawn = orthogonal_features(self.num_features, self.head_dim, self.norms, generator)
        # A new tensor: a backward pass still to come holds on to the old one.
        self.projection = drawn.to(self.projection.device)

    @property
    def feature_map(self) -> FeatureMap:
        if self._map is None or torch.compiler.is_compiling() or not self._map.is_of(self.projection):
            self._map = FavorPlusFeatures(self.projection, self.epsilon, self.features == "relu")
        return self._map

    @feature_map.setter
    def feature_map(self, _) -> None:
        """The map follows the projection buffer, wherever that is moved."""

    def _apply(self, fn, recurse=True):
        exact = self.projection
        super()._apply(fn, recurse)
        if not exact.is_meta:  # Ω stays float32 whatever the model is cast to
            self.projection = exact.to(self.projection.device)
        return self

    def before_forward(self):
        # Not while a checkpointed region is recomputed: it must see the Ω of its first run.
        if self.training and self.redraw_interval and torch._C._current_graph_task_id() == -1:
            self.count_forward()

    @torch.compiler.disable
    def count_forward(self) -> None:
        redraws, over = divmod(self.counter.add(self.forwards), self.redraw_interval)
        if not over:
            self.redraw(redraws)

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
