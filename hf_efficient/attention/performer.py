"""FAVOR+ (Choromanski et al. 2021, "Rethinking Attention with Performers"): random features of the softmax kernel.

    x' = x·D^{-1/4},    φ(x)_f = exp(ω_f·x' − ‖x'‖²/2) + ε,    E[φ(q)·φ(k)]/m = exp(q·k/√D) at ε = 0

ω are rows of a persistent float32 buffer Ω (m, D): blocks of D orthogonal rows (QR of a Gaussian, signs corrected so
that the blocks are Haar-distributed; the usual code skips that and is biased by a tenth), with norms χ_D or √D. Ω is
drawn from (seed, layer, redraw), so ranks agree, and redrawn every `redraw_interval` training forwards.

log φ is at most ‖ω‖²/2, which for heads of up to about 80 channels is in float32's range: nothing needs stabilising.
Beyond that, or with ε = 0, the stabiliser is a running maximum per feature (see `kernel.py`). The usual one, a maximum
over all keys to which 10⁻⁴ is then added, lets future keys move past outputs. ε is absolute here: at 0 the estimate is
unbiased; larger values trade bias for variance. With unit-variance q and k at D = 64 and m = 266 the error against
softmax exceeds 100 %: this is a kernel of its own rather than a stand-in for softmax, unless ‖q‖ and ‖k‖ are small or
m is large.

`features="relu"`: φ(x) = relu(Ωx') + 10⁻³, the generalised attention of the same paper.
"""

import functools
import math
import random

import torch
from torch import Tensor

from .base import check_choice, check_positive, register_attention
from .feature_map import LOG2_E, FeatureMap
from .kernel import NO_KEY, KernelAttention, safe_chunk_size

RELU_FLOOR = 1e-3


class _RandomFeatures(FeatureMap):
    """log₂ e · (Ωx' − ‖x'‖²/2), or relu(Ωx') + 10⁻³, with the Ω of the module at hand."""

    def __init__(self, projection: Tensor, epsilon: float, relu: bool):
        self.projection, self.version = projection, version_of(projection)
        self.scale = projection.shape[1] ** -0.25
        self.half = LOG2_E * self.scale**2 / 2  # of ‖x‖², in log₂ φ
        self.kept: dict[tuple[torch.dtype, bool], Tensor] = {}
        self.stabilised, self.floor, self.relu = not relu, 0.0 if relu else epsilon, relu

    def is_of(self, projection: Tensor) -> bool:
        return self.projection is projection and self.version == version_of(projection)

    @functools.cached_property
    def peak(self) -> float:
        """ω·x' − ‖x'‖²/2 = ‖ω‖²/2 − ‖ω − x'‖²/2"""
        return float(self.projection.double().square().sum(-1).max()) / 2

    def matrix(self, dtype: torch.dtype, back: bool = False) -> Tensor:
        """D^{-1/4} Ωᵀ (D, m), times log₂ e where exponents are made of it, or the way back (m, D)"""
        if (dtype, back) not in self.kept:
            matrix = self.projection.double() * self.scale
            matrix = matrix if back else (matrix.T if self.relu else matrix.T * LOG2_E)
            self.kept[dtype, back] = matrix.to(dtype).contiguous()
        return self.kept[dtype, back]

    def num_features(self, head_dim: int) -> int:
        return self.projection.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        product = x @ self.matrix(x.dtype)
        if self.relu:
            return product.relu() + RELU_FLOOR
        return product.sub_((x * x).sum(-1, keepdim=True), alpha=self.half)

    def write(self, x: Tensor, out: Tensor, spare: Tensor) -> None:
        rows = x.reshape(-1, x.shape[-1])
        if out.is_contiguous():
            torch.mm(rows, self.matrix(x.dtype), out=out.view(-1, out.shape[-1]))
        else:
            out.copy_(torch.mm(rows, self.matrix(x.dtype)).view(out.shape))
        if self.relu:
            out.clamp_(min=0).add_(RELU_FLOOR)
        else:
            norms = torch.linalg.vector_norm(rows, dim=-1).view(*x.shape[:-1], 1)
            out.sub_(norms.square_(), alpha=self.half)

    def vjp(self, x: Tensor, out: Tensor, grad: Tensor, target: Tensor) -> None:
        if self.relu:
            grad.mul_(out > RELU_FLOOR)
        pulled = torch.mm(grad.reshape(-1, grad.shape[-1]), self.matrix(x.dtype, back=True)).view(x.shape)
        if self.relu:
            target.copy_(pulled)
        else:
            torch.addcmul(pulled, grad.sum(-1, keepdim=True), x, value=-(self.scale**2), out=target)


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
            self._map = _RandomFeatures(self.projection, self.epsilon, self.features == "relu")
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
            self.forwards += 1
            if self.forwards % self.redraw_interval == 0:
                self.redraw(int(self.forwards) // self.redraw_interval)

    def exact_chunk_size(self, k, state=None):
        if not self.causal or self.features == "relu" or self.epsilon:  # ε bounds how far features can differ
            return self.chunk_size
        with torch.no_grad():
            wide = torch.promote_types(k.dtype, torch.float32)
            log_features = k.new_empty(*k.shape[:3], self.num_features, dtype=wide)
            self.feature_map.write(k.to(wide), log_features, log_features)
            before = torch.full_like(log_features[:, :, 0], NO_KEY) if state is None else state["c"] / LOG2_E
            return safe_chunk_size(log_features / LOG2_E, before, self.chunk_size or 256)

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


def version_of(x: Tensor) -> int | None:
    return None if x.is_inference() else x._version


def orthogonal_features(num_features: int, dim: int, norms: str, generator: torch.Generator) -> Tensor:
    """(m, D): blocks of D orthogonal rows, each block Haar-distributed, rows scaled to χ_D or √D."""
    blocks = []
    for _ in range(-(-num_features // dim)):
        q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64, device="cpu"))
        blocks.append((q * r.diagonal().sign()).T)  # QR alone is not Haar: its signs are not random
    rows = torch.cat(blocks)[:num_features]
    if norms == "sqrt":
        return (rows * dim**0.5).float()
    gaussian = torch.randn(num_features, dim, generator=generator, dtype=torch.float64, device="cpu")
    return (rows * gaussian.norm(dim=-1, keepdim=True)).float()
