"""What is run and timed, whoever made it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

FORWARD, TRAINING = "forward", "forward+backward"  # the passes


class Workload:
    """A function of leaf tensors, to be run forward or forward and backward."""

    def __init__(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...], parameters: tuple = ()):
        self.function, self.inputs, self.leaves = function, inputs, (*inputs, *parameters)
        self.gradient = torch.randn_like(inputs[-1])  # shaped and laid out like the output

    @torch.no_grad()
    def infer(self) -> Tensor:
        return self.function(*self.inputs)

    def train(self) -> tuple:
        return torch.autograd.grad(self.function(*self.inputs), self.leaves, self.gradient, allow_unused=True)


@dataclass(frozen=True)
class Contender:
    """`make(length, causal)` builds the workload; `against` names the contender that it is compared with."""

    name: str
    against: str
    make: Callable[[int, bool], Workload]
