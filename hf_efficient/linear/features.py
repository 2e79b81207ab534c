"""Feature maps φ of linear attention, as the engine applies them: to one chunk at a time, with their derivative.
FAVOR+ has a file of its own, `favor_plus.py`."""

import math

import torch
from torch import Tensor

LOG2_E = math.log2(math.e)

# Logarithms of features that are no further from 0 need no stabiliser: sums of a million of them are still in range.
SAFE_PEAK = 60.0

# "No key yet" in a running maximum: finite, so that the difference of two of them is 0 and not NaN.
NO_KEY = -1e30


class FeatureMap:
    """φ of one chunk. As it stands: features handed over ready-made.

    A `stabilised` map writes a = log₂ φ; the engine makes 2^a + `floor` of it. (PyTorch vectorises powers of two
    itself; of e it leaves them to MKL, whose take several times as long on AMD's processors.)
    """

    stabilised = False
    floor = 0.0
    peak = math.inf  # no ln φ is higher

    @property
    def needs_maximum(self) -> bool:
        """Whether 2^a could leave the range of float32, so that a running maximum has to keep it there."""
        bounded = self.floor > math.exp(-SAFE_PEAK) and self.peak <= SAFE_PEAK
        return self.stabilised and not bounded

    @property
    def log2_floor(self) -> float:
        return math.log2(self.floor) if self.floor else NO_KEY

    @property
    def ready_made(self) -> bool:
        """Whether features need not be made: what is handed over can be read where it stands."""
        return type(self).write is FeatureMap.write and not self.stabilised

    def num_features(self, head_dim: int) -> int:
        return head_dim

    def __call__(self, x: Tensor) -> Tensor:
        """What `write` writes, as a tensor that autograd and compilers can follow."""
        return x

    def write(self, x: Tensor, out: Tensor, spare: Tensor) -> None:
        """x (B, H, L, D) -> out (B, H, L, F); `spare` has the shape of `out` and may be scribbled on."""
        out.copy_(x)

    def vjp(self, x: Tensor, out: Tensor, grad: Tensor, target: Tensor) -> None:
        """dL/dout, of a stabilised map dL/d ln φ -> dL/dx, written to `target` (B, H, L, D); `grad` may be scribbled
        on."""
        target.copy_(grad)


class LogFeatureMap(FeatureMap):
    """Features handed over as natural logarithms."""

    stabilised = True

    def __call__(self, x: Tensor) -> Tensor:
        return x * LOG2_E

    def write(self, x: Tensor, out: Tensor, spare: Tensor) -> None:
        torch.mul(x, LOG2_E, out=out)


class EluFeatures(FeatureMap):
    """elu(x) + 1 = e^min(x, 0) + max(x, 0): an exponential is several times faster than elu's expm1."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.clamp(max=0).exp() + x.clamp(min=0)

    def write(self, x: Tensor, out: Tensor, spare: Tensor) -> None:
        torch.clamp(x, max=0, out=out).mul_(LOG2_E).exp2_()
        out.add_(torch.clamp(x, min=0, out=spare))

    def vjp(self, x: Tensor, out: Tensor, grad: Tensor, target: Tensor) -> None:
        torch.mul(grad, out.clamp(max=1), out=target)
