"""Decoding: one token of each row through all layers, in as few operations as possible.

`CompressivePerformerLayer` says what is computed. Here the same is computed with views of the weights at hand, made
once: for a single token, fetching weights, cutting them up and calling modules takes as long as the arithmetic. Only
for layers that are as they were built, without adapters or hooks, not offloaded, quantised or sharded; all others go
through their modules. A token is 1.8 times as fast.
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ....attention.bypass import are_all_hooked, can_bypass, is_hooked
from ....layers.rotary import rotate
from ....linear.autocast import autocasts
from ....linear.state import State
from ..memory import Memory
from .projection import NarrowProjection, Projection, weights_version
from .switch import is_on


class LayerStep:
    """One layer's weights at hand.

    Args:
        layer: a `CompressivePerformerLayer` that `is_as_built`.
    """

    def __init__(self, layer: nn.Module):
        memory_attention, mlp = layer.memory_attention, layer.mlp
        attention = memory_attention.attention
        self.key_makers = memory_attention.qkv_proj, memory_attention.q_norm, memory_attention.k_norm
        self.norm_before, self.norm_after = norm_at_hand(layer.layernorm_before), norm_at_hand(layer.layernorm_after)
        self.qk_norms = None
        if isinstance(memory_attention.q_norm, nn.RMSNorm):
            self.qk_norms = norm_at_hand(memory_attention.q_norm), norm_at_hand(memory_attention.k_norm)
        self.project, self.project_back = memory_attention.qkv_proj.at_hand(), memory_attention.o_proj.at_hand()
        self.widen, self.activate, self.narrow = mlp.fc1.at_hand(), mlp.activation_fn.forward, mlp.fc2.at_hand()
        self.attend, self.vectors = attention.step, (3, attention.num_heads, 1, attention.head_dim)

    def __call__(self, hidden_states: Tensor, memory: Memory, place: int, rotation: Tensor) -> Tensor:
        """(B, d), at a place in the open segment -> (B, d); the memory is updated in place."""
        hidden_states = hidden_states + self.look_back(hidden_states, memory, place, rotation)
        return hidden_states + self.feed(hidden_states)

    def look_back(self, hidden_states: Tensor, memory: Memory, place: int, rotation: Tensor) -> Tensor:
        normed = self.norm_before(hidden_states)
        vectors = self.project(normed).view(-1, *self.vectors)
        qk = vectors[:, :2]
        if self.qk_norms is not None:
            qk = torch.stack([norm(x) for norm, x in zip(self.qk_norms, qk.unbind(1), strict=True)], 1)
        q, k = rotate(qk, rotation).unbind(1)
        attended, state = self.attend(q, k, vectors[:, 2], memory.state)
        if state is not memory.state:
            memory.state.update(state)
        memory.segment.select(1, place).copy_(normed)
        return self.project_back(attended.reshape(normed.shape))

    def feed(self, hidden_states: Tensor) -> Tensor:
        return self.narrow(self.activate(self.widen(self.norm_after(hidden_states))))


class ReversibleStep(LayerStep):
    """The same of two streams, (B, 2d): `reversible.py`."""

    def __call__(self, hidden_states: Tensor, memory: Memory, place: int, rotation: Tensor) -> Tensor:
        first, second = hidden_states.chunk(2, -1)
        first = first + self.look_back(second, memory, place, rotation)
        return torch.cat([first, second + self.feed(first)], -1)


def norm_at_hand(norm: nn.LayerNorm | nn.RMSNorm) -> Callable[[Tensor], Tensor]:
    """A norm as a function, without gradients, its weights fetched once."""
    shape, weight, eps = norm.normalized_shape, norm.weight.detach(), norm.eps
    if isinstance(norm, nn.RMSNorm):
        return lambda x: torch.rms_norm(x, shape, weight, eps)
    bias = norm.bias.detach()
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


class Decoder:
    """All layers' weights at hand.

    Args:
        layers: `CompressivePerformerLayer`s that are as they were built.
    """

    def __init__(self, layers: nn.ModuleList):
        self.steps = [(ReversibleStep if layer.reversible else LayerStep)(layer) for layer in layers]
        first = layers[0].memory_attention
        self.positions, self.segment_start = first.positions, first.lengths.compressed + first.lengths.recent
        self.recurrent = first.attention.supports_recurrent
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

    def __call__(self, hidden_states: Tensor, cache: Cache, place: int) -> Tensor | None:
        """(B, 1, d), at a place in the open segment -> (B, 1, d), and the memory is updated in place.

        None, and nothing done, if a layer's state has to be made first.
        """
        for step, kept in zip(self.steps, cache.layers, strict=True):
            memory = kept.memory
            if memory is None or memory.state is None or memory.made_by != weights_version(*step.key_makers):
                return None
        table = self.positions.on(hidden_states.device, hidden_states.dtype)
        rotation, token = table[self.segment_start + place], hidden_states.squeeze(1)
        seen = [n + 1 for n in cache.layers[0].seen]
        with torch.inference_mode() if self.recurrent else torch.no_grad():
            for step, kept in zip(self.steps, cache.layers, strict=True):
                token = step(token, kept.memory, place, rotation)
                kept.count(seen, 1)
        for kept in cache.layers if self.recurrent else ():
            make_ordinary(kept.memory.state)
        return token.unsqueeze(1).clone()


def make_ordinary(state: State) -> None:
    """Replaces what was made in inference mode, and autograd would refuse later on: what was not updated in place."""
    for name, x in state.items():
        if x.is_inference():
            state[name] = x.clone()


_decoders: WeakKeyDictionary[nn.Module, Decoder] = WeakKeyDictionary()


def decode(model: nn.Module, hidden_states: Tensor, cache: Cache) -> Tensor | None:
    """(B, N, d) -> (B, N, d), if it is one token of each row in the midst of a segment; None where it is not, and
    where layers have to be called."""
    seen, segment = cache.layers[0].seen, model.lengths.segment
    if hidden_states.shape[1] > 1 or not seen or not is_on():
        return None
    place = seen[0] % segment
    if place == segment - 1 or any(n % segment != place for n in seen):
        return None
    outside = autocasts(hidden_states) or torch.compiler.is_compiling()
    decoder = None if outside else decoder_of(model)
    return None if decoder is None else decoder(hidden_states, cache, place)


def decoder_of(model: nn.Module) -> Decoder | None:
    """The weights of `model.layers` at hand; None if they can't be."""
    if are_all_hooked():
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
    }
    norms = layer.layernorm_before, layer.layernorm_after, memory_attention.q_norm, memory_attention.k_norm
    kinds = nn.LayerNorm, nn.RMSNorm, nn.Identity
    return (
        memory_attention.key_vectors == memory_attention.num_heads
        and all(can_bypass(part, kind) for part, kind in parts.items())
        and all(any(can_bypass(norm, kind) for kind in kinds) for norm in norms)
        and not any(map(is_hooked, layer.modules()))
        and all(type(parameter) is nn.Parameter and not parameter.is_meta for parameter in layer.parameters())
    )
