"""Attention over [compressed memory; recent memory; segment], Algorithm 1 of Ragupathi et al. 2021 made exact.

Queries come from the current segment only. Memory holds detached inputs of the layer; its keys and values are made of
them with the present weights, so that W_k and W_v keep learning from what is remembered. Memory is visible to every
query: it enters the attention's state before the segment does. Positions are counted from the segment's start.
"""

import torch
from torch import Tensor, nn

from ...attention.base import Attention
from ...attention.plain import is_plain
from ...layers.affine import affine
from ...layers.memory import (
    Memory,
    MemoryLengths,
    Piece,
    Schedule,
    join,
    last,
    last_of,
    move_on,
    own_storage,
    put_rows,
    remember,
    write_segment,
)
from ...layers.projection import Projection
from ...layers.rotary import RotaryTable, rotate
from ...linear.favor_plus import version_of
from ...linear.state import State
from .compression import Compression
from .kernels import absorb, reconstruction_loss


class MemoryAttention(nn.Module):
    """
    Args:
        attention: a causal mechanism with a state, without projections of its own.
        lengths: of segment and memories.
        compression: f_c; None where there is no compressed memory.
        positions: the rotations of [compressed; recent; segment].

    q, k and v are one matrix, stored (in, out) as GPT-2's: for a single token it is read in long rows, which is what
    decoding takes its time for.
    """

    def __init__(
        self, attention: Attention, lengths: MemoryLengths, compression: Compression | None, positions: RotaryTable
    ):
        super().__init__()
        self.attention, self.lengths, self.compression, self.positions = attention, lengths, compression, positions
        self.width = attention.num_heads * attention.head_dim
        self.vectors = attention.num_heads * (2 + attention.key_dim // attention.head_dim)  # of each token
        self.qkv_proj = Projection(self.vectors * attention.head_dim, attention.hidden_size)
        self.o_proj = Projection(attention.hidden_size, self.width)

    def weights_mark(self) -> tuple:
        """Differs when keys and values of the same tokens may: after a step of training, with another adapter."""
        layer = self.qkv_proj
        if type(layer) is Projection:
            return id(layer), version_of(layer.weight)
        adapters = getattr(layer, "disable_adapters", None), *getattr(layer, "active_adapters", ())
        return id(layer), *map(version_of, layer.parameters()), *adapters

    def project(self, tokens: Tensor) -> Tensor:
        """(B, N, d) -> q, k and v of all heads: (B, N, ·, D)"""
        shape = *tokens.shape[:2], self.vectors, self.attention.head_dim
        if not tokens.shape[1]:  # not every quantised layer takes nothing
            return tokens.new_zeros(shape)
        return self.qkv_proj(tokens).view(shape)

    def project_slots(self, *parts: Tensor) -> list[Tensor]:
        """What is made of (B, n, d) that are only looked at: (B, n, keys and values)"""
        empty = not any(slots.shape[1] for slots in parts)
        if empty or not self.attention.key_dim or not is_plain(self.qkv_proj, Projection):
            return [self.as_slots(self.project(slots.contiguous())) for slots in parts]
        weight, bias = self.qkv_proj.weight[:, self.width :], self.qkv_proj.bias[self.width :]
        return [affine(slots, weight.mT, bias) for slots in parts]

    def as_slots(self, vectors: Tensor) -> Tensor:
        """The same of tokens that are projected already"""
        start = self.attention.num_heads if self.attention.key_dim else 0
        return vectors[:, :, start:].flatten(2)

    def split_slots(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Their keys (B, n, H·R, D) and values (B, n, H, D)"""
        heads, num_heads = projected.unflatten(-1, (-1, self.attention.head_dim)), self.attention.num_heads
        return heads.split([heads.shape[2] - num_heads, num_heads], 2)

    def heads_apart(self, vectors: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, all heads' q, k and v, D) -> q and k with positions, and v: (B, H, N, D)"""
        heads = self.attention.num_heads
        qk, v = vectors.split([self.vectors - heads, heads], 2)
        q = k = rotate(qk, rotation)
        if self.attention.key_dim:
            q, k = q.split([heads, self.vectors - 2 * heads], 2)
        return q.transpose(1, 2), self.keys_first(k), self.values_first(v)

    def keys_first(self, k: Tensor) -> Tensor:
        """(B, N, H·R, D) -> (B, H, N, R·D)"""
        heads = self.attention.num_heads
        k = k if k.shape[2] == heads else k.unflatten(2, (heads, -1)).flatten(3)
        return k.transpose(1, 2)

    def values_first(self, v: Tensor) -> Tensor:
        """(B, N, H, D) -> (B, H, N, D); in training copied, or what is kept of v would keep unturned keys too."""
        return (v.contiguous() if self.training else v).transpose(1, 2)

    def forward(
        self, hidden_states: Tensor, memory: Memory, schedule: Schedule
    ) -> tuple[Tensor, Memory, Tensor | None]:
        """hidden_states (B, N, d) -> (B, N, d), the memory after them, and the compression's loss in training."""
        in_place = not (self.training or torch.is_grad_enabled())
        if in_place and schedule.is_step and memory.state is not None:
            return self.step(hidden_states, memory, schedule), memory, None
        self.attention.before_forward()
        table = self.positions.on(hidden_states.device, hidden_states.dtype)
        rotation = self.rotation_of(schedule, table)
        vectors, tokens = self.project(hidden_states), hidden_states.detach()
        q, k, v = self.heads_apart(vectors, rotation)
        if self.training:  # the weights have changed since, and are to learn from memory too
            memory = memory._replace(state=None, projected=None)
        outputs, losses = [], []
        for piece in schedule.pieces:
            at, state, projected = piece.columns, memory.state, None
            if state is None:
                state, projected = self.recall(memory, piece.seen, table)
            heads = (q, k, v) if len(schedule.pieces) == 1 else (x[:, :, at] for x in (q, k, v))
            output, state = self.attention.extend(*heads, state, key_mask=piece.key_mask)
            outputs.append(output)
            memory = memory._replace(state=state, projected=projected)
            memory, loss = self.take_in(memory, tokens[:, at], vectors[:, at], piece, schedule, table, in_place)
            losses += loss
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)
        return self.o_proj(output.transpose(1, 2).flatten(2)), self.settle(memory), self.mean_loss(losses)

    def skim(self, hidden_states: Tensor, memory: Memory, schedule: Schedule) -> Memory:
        """The memory after whole segments (B, N, d) whose outputs nobody asks for: nothing is attended to."""
        table = self.positions.on(hidden_states.device, hidden_states.dtype)
        for piece in schedule.pieces:
            memory = memory._replace(state=None, projected=None)
            memory, _ = self.take_in(memory, hidden_states[:, piece.columns], None, piece, schedule, table, True)
        return memory

    def step(self, token: Tensor, memory: Memory, schedule: Schedule) -> Tensor:
        """The same for one token (B, 1, d) that leaves every segment open; the memory is updated in place."""
        rotation = self.rotation_of(schedule, self.positions.on(token.device, token.dtype))
        heads = self.heads_apart(self.project(token), rotation)
        output, state = self.attention.step(*heads, memory.state)
        if state is not memory.state:
            memory.state.update(state)
        write_segment(memory.segment, token, schedule.pieces[0], schedule, in_place=True)
        return self.o_proj(output.reshape(-1, 1, self.width))

    def rotation_of(self, schedule: Schedule, table: Tensor) -> Tensor:
        """Of the call's columns: (N, 1, D/2), or (B, N, 1, D/2) where rows differ."""
        start, at = self.lengths.compressed + self.lengths.recent, schedule.positions
        if isinstance(at, slice):
            return table[start + at.start : start + at.stop]
        return table[(at + start).to(table.device)]

    def recall(self, memory: Memory, seen: list[int], table: Tensor) -> tuple[State, tuple[Tensor, Tensor]]:
        """The attention's state after [compressed; recent; open segment] of each row, and what was made of the slots
        of the first two."""
        lengths = self.lengths
        counts = [(lengths.compressed_after(n), lengths.recent_after(n), lengths.open_after(n)) for n in seen]
        compressed, recent, opened = (max(column) for column in zip(*counts, strict=True))
        slots = last(memory.compressed, compressed), last(memory.recent, recent), memory.segment[:, :opened]
        known = (*(memory.projected or (None, None)), None)
        made = iter(self.project_slots(*(slot for slot, seen in zip(slots, known, strict=True) if seen is None)))
        parts = [
            next(made) if seen is None else last(seen, slot.shape[1]) for slot, seen in zip(slots, known, strict=True)
        ]
        wide = torch.promote_types(parts[0].dtype, torch.float32)
        state = self.attention.initial_state(len(counts), parts[0].device, wide)
        # Compressed slots are filled only when all recent ones are, so these positions are without a gap.
        start = lengths.compressed + lengths.recent - compressed - recent
        for part, filled, leftmost in zip(parts, zip(*counts, strict=True), (False, False, True), strict=True):
            length, mask = part.shape[1], None
            if len(set(filled)) > 1:
                place = torch.arange(length, device=part.device)
                filled = torch.tensor(filled, device=part.device).unsqueeze(1)  # (B, 1)
                mask = place < filled if leftmost else place >= length - filled
            if length:
                k, v = self.split_slots(part)
                k = rotate(k, table[start : start + length])
                state = absorb(self.attention, self.keys_first(k), self.values_first(v), state, mask)
            start += length
        return state, tuple(parts[:2])

    def take_in(
        self,
        memory: Memory,
        tokens: Tensor,
        vectors: Tensor | None,
        piece: Piece,
        schedule: Schedule,
        table: Tensor,
        in_place: bool,
    ) -> tuple[Memory, list[tuple[Tensor, int]]]:
        """The memory after a piece: its tokens (B, n, d) join the open segments, and full ones move on."""
        segment, full, rows = self.lengths.segment, piece.full(self.lengths.segment), len(piece.seen)
        if schedule.aligned and full:
            tokens = join(memory.segment[:, : piece.seen[0] % segment], tokens)
        else:
            buffer = write_segment(memory.segment, tokens, piece, schedule, in_place)
            memory, tokens = memory._replace(segment=buffer), buffer
        if not full:
            return memory, []
        groups: dict[tuple[int, int], list[int]] = {}
        for row in full:
            seen = piece.seen[row]
            filled = self.lengths.compressed_after(seen), self.lengths.recent_after(seen)
            groups.setdefault(filled, []).append(row)
        losses = []
        for (compressed, recent), members in groups.items():
            whole = len(members) == rows
            index = torch.tensor(members, device=tokens.device)
            part = memory if whole else memory._replace(state=None, projected=None).select(index)
            own_tokens, own_vectors = (
                (tokens, vectors) if whole and schedule.aligned else (tokens[index], vectors[index])
            )
            *after, old, new = remember(
                last(part.compressed, compressed),
                last(part.recent, recent),
                own_tokens,
                self.lengths,
                self.compression,
            )
            projected = sight = None
            if whole and schedule.aligned and memory.projected is not None:
                sight, projected = self.sights_after(memory.projected, own_tokens, own_vectors, new, in_place)
            if not whole:
                after = put_rows(memory.compressed, index, after[0]), put_rows(memory.recent, index, after[1])
            memory = memory._replace(compressed=after[0], recent=after[1], projected=projected)
            if new is not None and self.training:
                q = own_vectors[:, :, : self.attention.num_heads]
                loss = self.compression.auxiliary_loss(q, old, new, self, sight)
                losses += [] if loss is None else [(loss, len(members))]
        return memory._replace(state=self.renewed(memory, full, piece, table)), losses

    def renewed(self, memory: Memory, full: list[int], piece: Piece, table: Tensor) -> State | None:
        """The state after some rows' segments are full: theirs begin anew, with what is remembered now."""
        if len(full) == len(piece.seen) or not self.attention.supports_recurrent:
            return None
        index = torch.tensor(full, device=memory.recent.device)
        seen = [piece.seen[row] + piece.real[row] for row in full]
        fresh, _ = self.recall(memory._replace(state=None).select(index), seen, table)
        return {name: x.index_copy(0, index, fresh[name].to(x.dtype)) for name, x in memory.state.items()}

    @torch.no_grad()
    def sights_after(
        self, sights: tuple[Tensor, Tensor], tokens: Tensor, vectors: Tensor, new: Tensor | None, keep: bool
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """What was made of the slots that leave the recent memory when a segment joins it, and, to keep, of those
        that are then remembered. As long as the weights stay as they are, nothing is projected twice."""
        own = self.as_slots(vectors) if vectors.shape[1] == tokens.shape[1] else self.project_slots(tokens)[0]
        old, recent = move_on(sights[1], own, self.lengths.recent)
        if not keep:
            return old, None
        compressed = sights[0]
        if new is not None:
            compressed = last_of(compressed, *self.project_slots(new), self.lengths.compressed)
        return old, (compressed, recent)

    def difference(self, q: Tensor, *sights: Tensor) -> Tensor:
        """The mean squared difference between what queries (B, N, H, D) make of some projected slots and of others:
        every query sees all, without positions."""
        pairs = [self.split_slots(sight) for sight in sights]
        pairs = [(self.keys_first(k), v.transpose(1, 2)) for k, v in pairs]
        return reconstruction_loss(self.attention, q.transpose(1, 2), *pairs)

    def settle(self, memory: Memory) -> Memory:
        """What outlives the call: without gradients, and no view of something larger."""
        state = None
        if not self.training and memory.state is not None:
            state = {name: x.detach() for name, x in memory.state.items()}
        projected = None if self.training or memory.projected is None else tuple(map(own_storage, memory.projected))
        return Memory(own_storage(memory.compressed), own_storage(memory.recent), memory.segment, state, projected)

    def mean_loss(self, losses: list[tuple[Tensor, int]]) -> Tensor | None:
        """Over rows. Where nothing was compressed it is 0, of every parameter: distributed training waits for all."""
        if losses:
            return sum(loss * rows for loss, rows in losses) / sum(rows for _, rows in losses)
        if not self.training or self.compression is None:
            return None
        parameters = list(self.compression.parameters())
        return 0.0 * sum(p.sum() for p in parameters) if parameters else None
