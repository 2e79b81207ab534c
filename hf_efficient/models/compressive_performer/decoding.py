"""Decoding: one token of each row through all layers, in as few operations as possible.

`CompressivePerformerLayer` says what is computed. Here the same is computed with views of the weights at hand, made
once: for a single token, fetching weights, cutting them up and calling modules takes as long as the arithmetic. Only
for layers that are as they were built, without adapters or hooks, not offloaded, quantised or sharded; all others go
through their modules.
"""

from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ...attention.plain import are_all_watched, is_hooked, is_plain
from ...layers.memory import Memory, Schedule
from ...layers.projection import NarrowProjection, Projection
from ...layers.rotary import rotate
from ...linear.state import State
from .kernels import step_stacked


class LayerStep:
    """One layer's weights at hand.

    Args:
        layer: a `CompressivePerformerLayer` that `is_as_built`.
    """

    def __init__(self, layer: nn.Module):
        memory_attention, mlp = layer.memory_attention, layer.mlp
        attention = memory_attention.attention
        self.weights_mark = memory_attention.weights_mark
        self.norms = [
            (norm.normalized_shape, norm.weight.detach(), norm.bias.detach(), norm.eps)
            for norm in (layer.layernorm_before, layer.layernorm_after)
        ]
        self.project, self.project_back = memory_attention.qkv_proj.at_hand(), memory_attention.o_proj.at_hand()
        self.widen, self.activate, self.narrow = mlp.fc1.at_hand(), mlp.activation_fn.forward, mlp.fc2.at_hand()
        self.attend, self.vectors = partial(step_stacked, attention), (3, attention.num_heads, 1, attention.head_dim)

    def __call__(self, hidden_states: Tensor, memory: Memory, place: int, rotation: Tensor) -> Tensor:
        """(B, d), at a place in the open segment -> (B, d); the memory is updated in place."""
        normed = torch.layer_norm(hidden_states, *self.norms[0])
        vectors = self.project(normed).view(-1, *self.vectors)
        attended, state = self.attend(rotate(vectors[:, :2], rotation).transpose(0, 1), vectors[:, 2], memory.state)
        if state is not memory.state:
            memory.state.update(state)
        memory.segment.select(1, place).copy_(normed)
        hidden_states = hidden_states + self.project_back(attended.reshape(normed.shape))
        normed = torch.layer_norm(hidden_states, *self.norms[1])
        return hidden_states + self.narrow(self.activate(self.widen(normed)))


class Decoder:
    """All layers' weights at hand.

    Args:
        layers: `CompressivePerformerLayer`s that are as they were built.
    """

    def __init__(self, layers: nn.ModuleList):
        self.steps = [LayerStep(layer) for layer in layers]
        self.recurrent = all(layer.memory_attention.attention.supports_recurrent for layer in layers)
        modules = list(layers.modules())
        self.modules = [(up._modules, name, module) for up in modules for name, module in up._modules.items()]
        named = ((up._parameters, name, p) for up in modules for name, p in up._parameters.items())
        self.parameters = [(group, name, p.data_ptr()) for group, name, p in named if p is not None]

    def is_current(self) -> bool:
        """Whether the layers still consist of what is at hand."""
        for group, name, module in self.modules:
            if group.get(name) is not module or is_hooked(module):
                return False
        for group, name, pointer in self.parameters:
            if (parameter := group.get(name)) is None or parameter.data_ptr() != pointer:
                return False
        return True

    def __call__(self, hidden_states: Tensor, cache: Cache, schedule: Schedule, rotation: Tensor) -> Tensor | None:
        """(B, 1, d) -> (B, 1, d), remembered; None, and nothing done, if a layer's state has to be made first."""
        marks = [step.weights_mark() for step in self.steps]
        for kept, mark in zip(cache.layers, marks, strict=True):
            if kept.memory is None or kept.memory.state is None or kept.weights != mark:
                return None
        place, token = schedule.positions.start, hidden_states.squeeze(1)
        with torch.inference_mode() if self.recurrent else torch.no_grad():
            for step, kept in zip(self.steps, cache.layers, strict=True):
                token = step(token, kept.memory, place, rotation)
                kept.count(schedule.after, 1)
        for kept in cache.layers if self.recurrent else ():
            make_ordinary(kept.memory.state)
        return token.unsqueeze(1).clone()


def make_ordinary(state: State) -> None:
    """Replaces what was made in inference mode, and autograd would refuse later on: what was not updated in place."""
    for name, x in state.items():
        if x.is_inference():
            state[name] = x.clone()


_decoders: WeakKeyDictionary[nn.Module, Decoder] = WeakKeyDictionary()


def decoder_of(model: nn.Module) -> Decoder | None:
    """The weights of `model.layers` at hand; None if they can't be."""
    if are_all_watched():
        return None
    decoder = _decoders.get(model)
    if decoder is None or not decoder.is_current():
        forget(model)
        if not all(map(is_as_built, model.layers)):
            return None
        decoder = _decoders[model] = Decoder(model.layers)
    return decoder


def forget(model: nn.Module) -> None:
    """Lets go of weights that are about to be replaced."""
    _decoders.pop(model, None)


def is_as_built(layer: nn.Module) -> bool:
    """Whether a `CompressivePerformerLayer` is its weights and nothing else, with one key per query."""
    memory_attention, mlp = layer.memory_attention, layer.mlp
    parts = {
        memory_attention.qkv_proj: Projection,
        memory_attention.o_proj: Projection,
        mlp.fc1: Projection,
        mlp.fc2: NarrowProjection,
        layer.layernorm_before: nn.LayerNorm,
        layer.layernorm_after: nn.LayerNorm,
    }
    return (
        memory_attention.attention.key_dim == memory_attention.attention.head_dim
        and all(is_plain(part, kind) for part, kind in parts.items())
        and not any(map(is_hooked, layer.modules()))
        and all(type(parameter) is nn.Parameter and not parameter.is_meta for parameter in layer.parameters())
    )
