"""Reversible residual layers (Gomez et al. 2017; Kitaev et al. 2020, "Reformer"; Ragupathi et al. 2021's Performer).

Hidden states are two streams side by side, (B, N, 2d), which begin as the same embeddings and end as their mean:

    y₁ = x₁ + Attention(LN(x₂)),    y₂ = x₂ + MLP(LN(y₁))

So what went in follows from what came out: x₂ = y₂ − MLP(LN(y₁)), x₁ = y₁ − Attention(LN(x₂)). Training keeps the last
layer's outputs alone. The backward pass computes each layer once more, with the same dropout and memory, and what it
keeps does not grow with the number of layers. Gradients are those of the formula, to the rounding of a sum and a
difference: with weights in bfloat16 that is much (autocast leaves the streams in float32).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states
from transformers.cache_utils import Cache

from ...attention.bypass import are_all_hooked, is_hooked
from ...layers.block import mean_of
from ...linear.autocast import autocast_as_now
from .memory import Memory
from .schedule import Schedule


def two_streams(hidden_states: Tensor) -> Tensor:
    """(B, N, d) -> (B, N, 2d)"""
    return torch.cat([hidden_states, hidden_states], -1)


def one_stream(streams: Tensor) -> Tensor:
    """(B, N, 2d) -> (B, N, d)"""
    return streams.unflatten(-1, (2, -1)).mean(-2)


def can_recompute(model: nn.Module) -> bool:
    """Whether layers are called for a gradient, and are their weights and nothing else: no hooks, nothing sharded.
    Others keep their activations."""
    layers = model.layers
    return (
        model.training
        and torch.is_grad_enabled()
        and not (torch.compiler.is_compiling() or are_all_hooked() or any(map(is_hooked, layers)))
        and all(type(parameter) is nn.Parameter for parameter in layers.parameters())
    )


def run_reversibly(
    model: nn.Module, streams: Tensor, cache: Cache, schedule: Schedule
) -> tuple[Tensor, Tensor | None]:
    """(B, N, 2d) through all layers, and the loss of their compressions; the cache has their memories then."""
    memories = [Memory.empty(streams.chunk(2, -1)[0]) if x.memory is None else x.memory for x in cache.layers]
    calls = [Called(*pair, schedule) for pair in zip(model.layers, memories, strict=True)]
    streams, *losses = _run(calls, streams, *(parameter for called in calls for parameter in called.parameters))
    for called, kept in zip(calls, cache.layers, strict=True):
        kept.store(called.take_memory(), schedule.after, streams.shape[1], model.made_for)
    return streams, mean_of(losses)


class Called:
    """A layer with what it was called with, to call it again.

    Args:
        layer: a `CompressivePerformerLayer`.
        memory: before the call.
    """

    def __init__(self, layer: nn.Module, memory: Memory, schedule: Schedule):
        self.layer, self.memory, self.schedule, self.after = layer, memory, schedule, None
        self.parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """x₁, x₂ -> y₁, y₂, and the compression's loss"""
        self.before_attention = Randomness(first)
        attended, self.after, loss = self.layer.attend(second, self.memory, self.schedule)
        first = first + attended
        self.before_mlp = Randomness(first)
        return first, second + self.layer.feed(first), loss

    def take_memory(self) -> Memory:
        """The memory after the call; the graph needs the one before it alone."""
        after, self.after = self.after, None
        return after

    def attend(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        with self.before_attention.again():
            attended, _, loss = self.layer.attend(x, self.memory, self.schedule)
        return attended, loss

    def feed(self, x: Tensor) -> tuple[Tensor]:
        with self.before_mlp.again():
            return (self.layer.feed(x),)


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx, calls, streams, *parameters):
        (first, second), losses = streams.chunk(2, -1), []
        for called in calls:
            first, second, loss = called.forward(first, second)
            losses.append(loss)
        ctx.calls, ctx.autocast = calls, autocast_as_now(streams)
        streams = torch.cat([first, second], -1)
        ctx.save_for_backward(streams)
        return streams, *losses

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_streams, *grad_losses):
        (streams,) = ctx.saved_tensors
        (first, second), (d_first, d_second) = streams.chunk(2, -1), grad_streams.chunk(2, -1)
        found = []
        for called, d_loss in zip(reversed(ctx.calls), reversed(grad_losses), strict=True):
            with ctx.autocast():
                fed, by_mlp = differentiate(called.feed, first, called.parameters, [d_second])
                second, d_first = second - fed, d_first + by_mlp[0]
                attended, by_attention = differentiate(called.attend, second, called.parameters, [d_first, d_loss])
                first, d_second = first - attended, d_second + by_attention[0]
            found = [*map(add, by_attention[1:], by_mlp[1:]), *found]
        return None, torch.cat([d_first, d_second], -1), *found


# Random states and memories can't be traced.
_run = torch.compiler.disable(_Reversible.apply)


def differentiate(
    part: Callable, x: Tensor, parameters: list[nn.Parameter], gradients: list[Tensor | None]
) -> tuple[Tensor, list[Tensor | None]]:
    """The first output of part(x), and the gradients of x and the parameters that those of its outputs give."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        outputs = part(x)
    pairs = [(y, d) for y, d in zip(outputs, gradients, strict=True) if y is not None and y.requires_grad]
    ys, ds = zip(*pairs, strict=True)
    return outputs[0].detach(), torch.autograd.grad(ys, [x, *parameters], ds, allow_unused=True)


def add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


class Randomness:
    """The random numbers that are drawn from now on, on the CPU and where a tensor is, to be drawn once more."""

    def __init__(self, like: Tensor):
        self.kind, self.state = like.device.type, torch.get_rng_state()
        self.devices, self.states = get_device_states(like)

    @contextmanager
    def again(self) -> Iterator[None]:
        with torch.random.fork_rng(self.devices, device_type=self.kind):
            torch.set_rng_state(self.state)
            set_device_states(self.devices, self.states, device_type=self.kind)
            yield
