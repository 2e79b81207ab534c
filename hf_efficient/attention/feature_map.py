"""Feature maps φ of kernel attention, as the engine applies them: to one chunk at a time, with their derivative."""

import math

from torch import Tensor

LOG2_E = math.log2(math.e)

# Logarithms of features that are no further from 0 need no stabiliser: sums of a million of them are still in range.
SAFE_PEAK = 60.0


def exp_(x: Tensor) -> Tensor:
    """e^x in place; on a CPU as 2^(x log₂ e), which PyTorch vectorises itself. Its e^x is MKL's, slow on AMD."""
    return x.mul_(LOG2_E).exp2_() if x.is_cpu else x.exp_()


class FeatureMap:
    """φ of one chunk. As it stands: features handed over ready-made.

    A `stabilised` map writes a = log φ; the engine makes exp(a) + `floor` of it.
    """

    stabilised = False
    floor = 0.0
    peak = math.inf  # no log φ is higher

    @property
    def needs_maximum(self) -> bool:
        """Whether exp(a) could leave the range of float32, so that a running maximum has to keep it there."""
        bounded = self.floor > math.exp(-SAFE_PEAK) and self.peak <= SAFE_PEAK
        return self.stabilised and not bounded

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
        """dL/dout -> dL/dx, written to `target` (B, H, L, D); `grad` may be scribbled on."""
        target.copy_(grad)


class LogFeatureMap(FeatureMap):
    """Features handed over as logarithms."""

    stabilised = True
