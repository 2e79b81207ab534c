"""The language model as two functions of tensors alone, for torch.export and ONNX.

`SegmentReader`: a segment (B, T), the tokens `seen` before it, memory and state -> logits (B, T, V), both after it.
`TokenWriter`: a token (B, 1), its `place` in the segment, the state -> logits (B, 1, V), the state after it.

Memory are the slots of all layers, compressed (L, B, L_c, d) and recent (L, B, L_m, d); the state is that of the
attention, of all layers too, and the last tokens (1, B, n) where the model embeds n-grams. A text goes through
the first segment by segment. What is left of it, and what is written then, goes through the second token by token,
until it is a segment: that goes through the first as well, whose state the next token takes. A text begins with the
reading of anything at seen = −T: nothing of it is remembered, and the state is that of an empty memory.
"""

import torch
from torch import Tensor, nn

from ...linear.state import State
from .attention import MemoryAttention
from .memory import Memory

MEMORIES = ("compressed", "recent")


class ExportedModel(nn.Module):
    """What both functions have in common.

    Args:
        model: a `CompressivePerformerForCausalLM`.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.body, self.lm_head, self.lengths = model.model, model.lm_head, model.model.lengths
        self.memories = [name for name in MEMORIES if getattr(self.lengths, name)]
        weight = self.lm_head.weight
        wide = torch.promote_types(weight.dtype, torch.float32)
        # Not within a graph, where a mechanism can't look at its weights to know what its state needs.
        self.empty = self.body.layers[0].memory_attention.attention.initial_state(1, weight.device, wide)
        self.states = sorted(self.empty)
        self.names = [f"state_{name}" for name in self.states] + ["tokens"] * (self.body.embed_ngrams is not None)

    def empty_state(self, rows: int) -> State:
        """Of one layer, nothing seen."""
        return {name: x.expand(rows, *x.shape[1:]) for name, x in self.empty.items()}

    def run_layer(
        self, layer: nn.Module, hidden: Tensor, state: State, rotation: Tensor
    ) -> tuple[Tensor, Tensor, State]:
        """(B, N, d) -> (B, N, d), what is remembered of it (B, N, d), and the state after it"""
        attention, normed = layer.memory_attention, layer.layernorm_before(hidden)
        q, k, v = attention.split_heads(attention.qkv_proj(normed), rotation)
        heads, state = attention.attention.extend(q, k, v, state)
        hidden = hidden + attention.o_proj(heads.transpose(1, 2).flatten(2))
        return hidden + layer.mlp(layer.layernorm_after(hidden)), normed, state

    def rotations(self, hidden: Tensor, places: Tensor) -> Tensor:
        """Of tokens at these places (N,) in their segment."""
        table = self.body.layers[0].memory_attention.positions.on(hidden.device, hidden.dtype)
        return table[places + self.lengths.compressed + self.lengths.recent]

    def split(self, tensors: tuple[Tensor, ...]) -> list[State]:
        """Those of all layers, in the order of `states` -> the state of each"""
        return [
            dict(zip(self.states, layer, strict=True)) for layer in zip(*(x.unbind(0) for x in tensors), strict=True)
        ]

    def join(self, states: list[State]) -> list[Tensor]:
        return [torch.stack([state[name] for state in states]) for name in self.states]

    def start(self, rows: int) -> tuple[list[Tensor], list[Tensor]]:
        """Memory and state before a text."""
        layers, weight, lengths = self.body.layers, self.lm_head.weight, self.lengths
        slots = [weight.new_zeros(rows, n, weight.shape[1]) for n in (lengths.compressed, lengths.recent, 0)]
        none = torch.zeros((), dtype=torch.int64, device=weight.device)
        states = [self.recall(layer.memory_attention, Memory(*slots), none) for layer in layers]
        ngrams = self.body.embed_ngrams
        tokens = [] if ngrams is None else [ngrams.nothing(rows, weight.device).unsqueeze(0)]
        return [x.expand(len(layers), *x.shape) for x in slots if x.shape[1]], self.join(states) + tokens

    def embed(self, input_ids: Tensor, tensors: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...], list[Tensor]]:
        """input_ids (B, N) -> (B, N, d), the attention's state alone, and the last tokens, if they are kept"""
        hidden = self.body.embed(input_ids, None)
        if self.body.embed_ngrams is None:
            return hidden, tensors, []
        *state, before = tensors
        ngrams, last = self.body.embed_ngrams(input_ids, before.squeeze(0))
        return hidden + ngrams, state, [last.unsqueeze(0)]

    def recall(self, attention: MemoryAttention, memory: Memory, seen: Tensor) -> State:
        """The state after a memory, after so many tokens: of rows that are all at the same place."""
        lengths, rows = self.lengths, memory.segment.shape[0]
        state = self.empty_state(rows)
        recent = seen.clamp(0, lengths.recent)
        compressed = ((seen - lengths.recent).clamp_min(0) // lengths.rate).clamp_max(lengths.compressed)
        table, start = attention.positions.on(memory.segment.device, memory.segment.dtype), 0
        for slots, filled in zip(memory[:2], (compressed, recent), strict=True):
            length = slots.shape[1]
            if length:
                k, v = attention.split_slots(attention.project_slots(slots), table[start : start + length])
                real = torch.arange(length, device=slots.device) >= length - filled  # they are aligned to the right
                state = attention.attention.absorb(k, v, state, real.expand(rows, -1))
            start += length
        return state


class SegmentReader(ExportedModel):
    def forward(self, input_ids: Tensor, seen: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """input_ids (B, T), seen () and memory, then state -> logits (B, T, V), and memory and state after them"""
        count, states, after = len(self.memories), [], []
        hidden, state_tensors, tokens = self.embed(input_ids, tensors[count:])
        rotation = self.rotations(hidden, torch.arange(self.lengths.segment, device=hidden.device))
        for i, (layer, state) in enumerate(zip(self.body.layers, self.split(state_tensors), strict=True)):
            slots = {name: x[i] for name, x in zip(self.memories, tensors, strict=False)}
            hidden, normed, _ = self.run_layer(layer, hidden, state, rotation)
            memory = self.moved_on(layer.memory_attention, slots, normed)
            after.append([getattr(memory, name) for name in self.memories])
            states.append(self.recall(layer.memory_attention, memory, seen + self.lengths.segment))
        memories = [torch.stack(slots) for slots in zip(*after, strict=True)]
        tokens = [last * (seen >= 0) for last in tokens]  # before a text there is nothing
        return self.lm_head(self.body.norm(hidden)), *memories, *self.join(states), *tokens

    def moved_on(self, attention: MemoryAttention, slots: dict[str, Tensor], segment: Tensor) -> Memory:
        """The memory after a segment (B, T, d). Slots that are not filled move on like others, and stay so."""
        none = segment[:, :0]
        before = Memory(slots.get("compressed", none), slots.get("recent", none), segment)
        return attention.move_segment(before, self.lengths.compressed, self.lengths.recent)[0]


class TokenWriter(ExportedModel):
    def forward(self, input_ids: Tensor, place: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """input_ids (B, 1), place (1,) and the state -> logits (B, 1, V), and the state after it"""
        states, (hidden, state, tokens) = [], self.embed(input_ids, state)
        rotation = self.rotations(hidden, place)
        for layer, before in zip(self.body.layers, self.split(state), strict=True):
            hidden, _, after = self.run_layer(layer, hidden, before, rotation)
            states.append(after)
        return self.lm_head(self.body.norm(hidden)), *self.join(states), *tokens
