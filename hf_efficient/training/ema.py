"""The exponential moving average of a model's weights: a ← a + (1 − d_t)(w − a), d_t = min(d, (1 + t) / (10 + t)).

Early on d_t is small, so that the average soon forgets where training began. Weights and the statistics of BatchNorm
are averaged; other buffers (counters, fixed random projections) are as the model has them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .errors import CheckpointError

FILE = "ema.safetensors"
STATISTICS = ("running_mean", "running_var")
STEP = "step"  # beside the tensors, none of which has a name without a dot or ...
PREFIX = "average."  # ... this before it


class MovingAverage:
    """
    Args:
        decay: d
    """

    def __init__(self, model: nn.Module, decay: float):
        self.model, self.decay, self.step = model, decay, 0
        self.is_applied = False
        self.averages = {name: tensor.detach().clone() for name, tensor in self.averaged().items()}

    def averaged(self) -> dict[str, Tensor]:
        """The model's own tensors that are averaged; a tied one once."""
        statistics = {name: x for name, x in self.model.named_buffers() if name.endswith(STATISTICS)}
        every = {**dict(self.model.named_parameters()), **statistics}
        return {name: x for name, x in every.items() if x.is_floating_point()}

    @torch.no_grad()
    def update(self) -> None:
        """Call it after each step of the optimizer."""
        decay = min(self.decay, (1 + self.step) / (10 + self.step))
        self.step += 1
        own = self.averaged()
        torch._foreach_lerp_([self.averages[name] for name in own], list(own.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within, the model has the averages for weights."""
        if self.is_applied:
            yield
            return
        self.exchange()
        self.is_applied = True
        try:
            yield
        finally:
            self.exchange()
            self.is_applied = False

    def exchange(self) -> None:
        """Swaps the model's weights and the averages, without a copy."""
        for name, tensor in self.averaged().items():
            tensor.data, self.averages[name] = self.averages[name], tensor.data

    def save(self, folder: str | Path) -> None:
        tensors = {PREFIX + name: tensor.contiguous() for name, tensor in self.averages.items()}
        save_file({**tensors, STEP: torch.tensor(self.step)}, Path(folder) / FILE)

    def load(self, folder: str | Path) -> None:
        file = Path(folder) / FILE
        if not file.is_file():
            raise CheckpointError(f"{folder} was written without ema_decay: give the run another output_dir.")
        tensors = load_file(file)
        self.step = int(tensors.pop(STEP))
        stored = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
        if {name: x.shape for name, x in stored.items()} != {name: x.shape for name, x in self.averages.items()}:
            raise CheckpointError(f"{file} does not fit the model: give the run another output_dir.")
        for name, tensor in self.averages.items():
            tensor.copy_(stored[name])
