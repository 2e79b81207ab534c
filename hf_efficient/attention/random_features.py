"""Linear mechanisms whose features are drawn at random: when and from what they are drawn."""

import random

import torch
from torch import Tensor

from .counter import Counter, first_run
from .kernel_attention import KernelAttention


class RandomFeatures(KernelAttention):
    """Base of `performer` and `rfa`: Ω, the persistent float32 buffer `projection`, is drawn from (seed, layer,
    redraw), so that ranks agree, and drawn again every `redraw_interval` training forwards, never in evaluation.

    A subclass calls `add_projection`, and says in `draw` what Ω is.

    Args:
        redraw_interval: training forwards between redraws of Ω; 0 = never.
        seed: of Ω, together with the layer index and the number of redraws.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, redraw_interval: int = 1000, seed: int = 0, **common):
        super().__init__(hidden_size, num_heads, **common)
        if isinstance(redraw_interval, bool) or not isinstance(redraw_interval, int) or redraw_interval < 0:
            raise ValueError(f"redraw_interval={redraw_interval!r} must be a number of forwards, or 0 for never.")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed={seed!r} must be a non-negative integer.")
        self.redraw_interval, self.seed, self.counter = redraw_interval, seed, Counter()

    def add_projection(self, *shape: int) -> None:
        self.register_buffer("projection", torch.empty(shape, dtype=torch.float32))
        self.register_buffer("forwards", torch.zeros((), dtype=torch.long))

    def draw(self, generator: torch.Generator) -> Tensor:
        """A new Ω, on the CPU."""
        raise NotImplementedError

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
        # A new tensor: a backward pass still to come holds on to the old one.
        self.projection = self.draw(generator).to(self.projection.device)

    def _apply(self, fn, recurse=True):
        exact = self.projection
        super()._apply(fn, recurse)
        if not exact.is_meta:  # Ω stays float32 whatever the model is cast to
            self.projection = exact.to(self.projection.device)
        return self

    def before_forward(self):
        if self.training and self.redraw_interval and first_run():
            self.count_forward()

    @torch.compiler.disable
    def count_forward(self) -> None:
        redraws, over = divmod(self.counter.add(self.forwards), self.redraw_interval)
        if not over:
            self.redraw(redraws)
