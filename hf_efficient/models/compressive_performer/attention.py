"""Attention over [compressed memory; recent memory; segment], Algorithm 1 of Ragupathi et al. 2021 made exact.

Queries come from the current segment only. Memory holds detached inputs of the layer; its keys and values are made of
them with the present weights, so that W_k and W_v keep learning from what is remembered. Memory is visible to every
query: it enters the attention's state before the segment does. Positions are counted from the segment's start.
"""

import torch
from torch import Tensor, nn

from ...attention.base import Attention
from ...layers.norms import head_norm
from ...layers.rotary import RotaryTable, rotate
from .compression import Compression
from .fast.projected_memory import known_projections, projections_after, projections_to_keep
from .fast.projection import Projection, project_from, weights_version
from .memory import Memory, MemoryLengths, append, filled_slots, last, move_on, write_segment
from .schedule import Piece, Schedule


class MemoryAttention(nn.Module):
    """
    Args:
        attention: a causal mechanism with a state, without projections of its own.
        lengths: of segment and memories.
        compression: f_c; None where there is no compressed memory.
        positions: the rotations of [compressed; recent; segment].
        qk_norm_eps: of the norms of queries and keys; None where they have none.

    q, k and v are one matrix. Its output are vectors of D channels: H for q, H for k (several per head in a mixture of
    keys, none where keys are queries), H for v.
    """

    def __init__(
        self,
        attention: Attention,
        lengths: MemoryLengths,
        compression: Compression | None,
        positions: RotaryTable,
        qk_norm_eps: float | None = None,
    ):
        super().__init__()
        self.attention, self.lengths, self.compression, self.positions = attention, lengths, compression, positions
        self.num_heads, self.width = attention.num_heads, attention.num_heads * attention.head_dim
        self.key_vectors = self.num_heads * attention.key_dim // attention.head_dim
        sizes = [size for size in (self.width, self.key_vectors * attention.head_dim, self.width) if size]
        self.qkv_proj = Projection(sum(sizes), attention.hidden_size, parts=sizes)
        self.o_proj = Projection(attention.hidden_size, self.width)
        self.q_norm = head_norm(attention.head_dim, qk_norm_eps)
        self.k_norm = head_norm(attention.head_dim, qk_norm_eps if self.key_vectors else None)

    def forward(
        self, hidden_states: Tensor, memory: Memory, schedule: Schedule
    ) -> tuple[Tensor, Memory, Tensor | None]:
        """hidden_states (B, N, d) -> (B, N, d), the memory after them, and the compression's loss in training."""
        self.attention.before_forward()
        version = weights_version(self.qkv_proj, self.q_norm, self.k_norm)
        if self.training or memory.made_by != version:  # keys and values are to be made with the present weights
            memory = memory.slots_only()
        projected = self.qkv_proj(hidden_states)  # (B, N, all vectors)
        q, k, v = self.split_heads(projected, self.rotations(hidden_states, schedule))
        outputs, losses = [], []
        for piece in schedule.pieces:
            at = piece.columns
            if memory.state is None:
                memory = self.recall(memory, piece.seen)
            output, state = self.attend(q[:, :, at], k[:, :, at], v[:, :, at], memory, piece)
            memory, loss = self.remember(
                memory._replace(state=state), hidden_states[:, at].detach(), projected[:, at], piece, schedule
            )
            outputs.append(output)
            losses += loss
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)  # (B, H, N, D)
        return self.o_proj(output.transpose(1, 2).flatten(2)), self.kept(memory, version), self.mean_loss(losses)

    # Projections.

    def split_heads(self, projected: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, all vectors) -> q and k turned by their positions, and v: (B, H, N, D)"""
        vectors = projected.unflatten(-1, (-1, self.attention.head_dim))
        q, k, v = vectors.split([self.num_heads, self.key_vectors, self.num_heads], 2)
        q = rotate(self.q_norm(q), rotation)
        k = rotate(self.k_norm(k), rotation) if self.key_vectors else q
        return q.transpose(1, 2), self.keys_per_head(k), v.transpose(1, 2)

    def keys_per_head(self, k: Tensor) -> Tensor:
        """(B, N, H·R, D) -> (B, H, N, R·D)"""
        return k.unflatten(2, (self.num_heads, -1)).flatten(3).transpose(1, 2)

    def project_slots(self, slots: Tensor) -> Tensor:
        """Keys and values of slots (B, n, d), which are only looked at: (B, n, vectors of k and v)"""
        if not slots.shape[1]:  # not every quantised layer takes nothing
            return slots.new_zeros(
                *slots.shape[:2], (self.key_vectors or self.num_heads) * self.attention.head_dim + self.width
            )
        return project_from(self.qkv_proj, slots, self.width if self.key_vectors else 0)

    def split_slots(self, projected: Tensor, rotation: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, n, vectors of k and v) -> k, turned if they have positions, and v: (B, H, n, D)"""
        vectors = projected.unflatten(-1, (-1, self.attention.head_dim))
        k, v = vectors.split([vectors.shape[2] - self.num_heads, self.num_heads], 2)
        k = self.k_norm(k) if self.key_vectors else self.q_norm(k)
        return self.keys_per_head(k if rotation is None else rotate(k, rotation)), v.transpose(1, 2)

    def rotations(self, hidden_states: Tensor, schedule: Schedule) -> Tensor:
        """Of the call's columns: (N, 1, D/2), or (B, N, 1, D/2) where rows differ."""
        table = self.positions.on(hidden_states.device, hidden_states.dtype)
        start = self.lengths.compressed + self.lengths.recent
        return table[schedule.positions(table.device) + start]

    # Memory.

    def attend(self, q: Tensor, k: Tensor, v: Tensor, memory: Memory, piece: Piece) -> tuple[Tensor, dict]:
        """q, k, v (B, H, n, D) of a piece -> (B, H, n, D), and the attention's state after it"""
        if q.shape[2] == 1 and piece.key_mask is None:
            return self.attention.step(q, k, v, memory.state)
        return self.attention.extend(q, k, v, memory.state, key_mask=piece.key_mask)

    def recall(self, memory: Memory, seen: list[int]) -> Memory:
        """With the attention's state after [compressed; recent; open segment], for rows that have seen so much."""
        lengths, like = self.lengths, memory.recent
        table = self.positions.on(like.device, like.dtype)
        state = self.attention.initial_state(len(seen), like.device, torch.promote_types(like.dtype, torch.float32))
        filled = [[count(n) for n in seen] for count in (lengths.compressed_after, lengths.recent_after)]
        slots = [last(kept, max(counts)) for kept, counts in zip(memory[:2], filled, strict=True)]
        parts = known_projections(memory, slots) or [self.project_slots(part) for part in slots]
        # Compressed slots are filled only when all recent ones are, so these positions have no gap.
        start = lengths.compressed + lengths.recent - sum(part.shape[1] for part in parts)
        for part, counts in zip(parts, filled, strict=True):
            stop = start + part.shape[1]
            if part.shape[1]:
                k, v = self.split_slots(part, table[start:stop])
                state = self.attention.absorb(k, v, state, filled_slots(counts, part))
            start = stop
        opened = [lengths.open_after(n) for n in seen]
        if length := max(opened):  # it is read once more
            again = memory.segment[:, :length]
            q, k, v = self.split_heads(self.qkv_proj(again), table[start : start + length])
            _, state = self.attention.extend(q, k, v, state, key_mask=filled_slots(opened, again, leftmost=True))
        return memory._replace(state=state, projected=projections_to_keep(parts, self))

    def remember(
        self, memory: Memory, tokens: Tensor, projected: Tensor, piece: Piece, schedule: Schedule
    ) -> tuple[Memory, list[tuple[Tensor, int]]]:
        """The memory after a piece: its tokens (B, n, d) join the open segments, and full ones move on.

        Also the compression's losses in training, each with its number of rows. `projected` is made of the tokens.
        """
        in_place = not (self.training or torch.is_grad_enabled())
        memory = memory._replace(segment=write_segment(memory.segment, tokens, piece, schedule, in_place))
        full, state, losses = piece.full_rows(self.lengths.segment), memory.state, []
        for filled, rows in self.lengths.rows_alike(full, piece.seen).items():
            index = None if len(rows) == len(piece.seen) else torch.tensor(rows, device=tokens.device)  # None: all
            before, own = memory.select(index), projected if index is None else projected[index]
            after, old, new = self.move_segment(before, *filled)
            if index is None and schedule.aligned:
                after = after._replace(projected=projections_after(before, own, new, self))
            if new is not None and self.training:
                q = self.q_norm(own[..., : self.width].unflatten(-1, (self.num_heads, -1)))
                loss = self.compression.auxiliary_loss(q.transpose(1, 2), old, new, self)
                losses += [] if loss is None else [(loss, len(rows))]
            memory = memory.with_rows(index, after)
        if 0 < len(full) < len(piece.seen) and self.attention.supports_recurrent:
            memory = memory._replace(state=self.renewed(state, memory, full, piece))
        return memory, losses

    def move_segment(
        self, memory: Memory, compressed: int, recent: int
    ) -> tuple[Memory, Tensor | None, Tensor | None]:
        """The memory after its segment, which is full, has moved on, for rows with so many slots filled; and the slots
        that were compressed (B, n, d), if any, and what they became (B, n/c, d)."""
        old, recent_slots = move_on(last(memory.recent, recent), memory.segment, self.lengths.recent)
        compressed_slots, new = last(memory.compressed, compressed), None
        if self.compression is not None and old.shape[1]:
            new = self.compression(old)
            compressed_slots = append(compressed_slots, new.detach(), self.lengths.compressed)
        empty = old.new_zeros(old.shape[0], 0, old.shape[2])
        return Memory(compressed_slots, recent_slots, empty), old, new

    def renewed(self, state: dict, memory: Memory, full: list[int], piece: Piece) -> dict:
        """The attention's state after some rows' segments are full: theirs begin anew, with what is remembered now."""
        index = torch.tensor(full, device=memory.recent.device)
        seen = [piece.seen[row] + piece.real[row] for row in full]
        fresh = self.recall(memory.slots_only().select(index), seen).state
        return {name: x.index_copy(0, index, fresh[name].to(x.dtype)) for name, x in state.items()}

    def kept(self, memory: Memory, version: tuple) -> Memory:
        """What outlives a call: no gradients, and in training, after which the weights are others, slots alone."""
        state = None if self.training else memory.state
        return memory._replace(state=state and {name: x.detach() for name, x in state.items()}, made_by=version)

    def mean_loss(self, losses: list[tuple[Tensor, int]]) -> Tensor | None:
        """Over rows. Where nothing was compressed it is 0, of every parameter: distributed training waits for all."""
        if losses:
            return sum(loss * rows for loss, rows in losses) / sum(rows for _, rows in losses)
        if not self.training or self.compression is None:
            return None
        parameters = list(self.compression.parameters())
        return 0.0 * sum(p.sum() for p in parameters) if parameters else None
