"""LSH attention (Kitaev et al. 2020, "Reformer"): every token attends to tokens that hash alike.

    o_i = Σ_r share_ir Σ_{j∈A_r(i)} softmax_j(q_i·k_j / √D) v_j,    k_j = q_j / ‖q_j‖,
    share_i = softmax over rounds r of logsumexp_{j∈A_r(i)}(q_i·k_j / √D)

Queries and keys share a projection; a token's own logit is −1e5, so that it counts where there is no other. In each
round a token's bucket is argmax [x R; −x R], R (rounds, H, D, b/2) drawn once, x detached. Cost O(N·C·rounds·D).

Bidirectional: tokens sorted by (bucket, position) are cut into chunks of C; A(i) is i's chunk and the one before;
the last precedes the first. Padding sorts last and the wrap goes round the real chunks of a sample, so that
padding changes no real token; masked tokens output 0.

Causal: as published, chunk borders move with future tokens, which so leak into the past. Here chunks are counted
from each bucket's start, and A(i) is what precedes i in its bucket's chunk and the chunk before: strictly causal. The
recurrent state is the last 2C keys and values of each bucket.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..linear.autocast import without_autocast
from .base import check_positive
from .masking import zero_masked
from .registry import register_attention
from .shared_queries import SharedQueries

SELF = -1e5  # loses to any other key
MASKED = -1e9  # loses to oneself; finite, so that a token which sees nothing becomes 0 and not NaN


@register_attention
class Lsh(SharedQueries):
    """Softmax attention within buckets of a locality-sensitive hash.

    Args:
        num_buckets: b, even.
        chunk_size: C.
        num_rounds: independent hashes.
        seed: of R, together with `layer_idx`.
    """

    paper = "Kitaev 2020"
    cost = "NC·rounds·D"
    exempt_from = ("permutation",)
    supports_causal = True
    supports_recurrent = True

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_buckets: int = 8,
        chunk_size: int = 32,
        num_rounds: int = 2,
        seed: int = 0,
        **common,
    ):
        super().__init__(hidden_size, num_heads, **common)
        check_positive("num_buckets", num_buckets)
        check_positive("chunk_size", chunk_size)
        check_positive("num_rounds", num_rounds)
        if num_buckets % 2:
            raise ValueError(f"num_buckets={num_buckets} must be even: they come in pairs ±x R.")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed={seed!r} must be a non-negative integer.")
        self.num_buckets, self.chunk_size, self.num_rounds, self.seed = num_buckets, chunk_size, num_rounds, seed
        shape = (num_rounds, num_heads, self.head_dim, num_buckets // 2)
        self.register_buffer("rotations", torch.empty(shape, dtype=torch.float32))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self):
        generator = torch.Generator().manual_seed(self.seed * 65537 + self.layer_idx)
        self.rotations.copy_(torch.randn(self.rotations.shape, generator=generator, device="cpu"))

    def buckets(self, q: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """(B, H, N, D) -> (B, H, rounds, N); padding has a bucket of its own, the last."""
        with without_autocast(q):
            x = _wide(q.detach())
            x = torch.einsum("bhnd,rhde->bhrne", x, self.rotations.to(x.dtype))
        buckets = torch.cat([x, -x], -1).argmax(-1)
        return buckets if key_mask is None else buckets.masked_fill(~key_mask[:, None, None], self.num_buckets)

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        token = torch.arange(q.shape[2], device=q.device)
        i = token if rows is None else rows
        buckets = self.buckets(q, key_mask)  # (B, H, rounds, N)
        member = F.one_hot(buckets, self.num_buckets + 1)
        place = (member.cumsum(-2) * member).sum(-1) - 1  # among the tokens of its bucket
        if not self.causal:
            size = member.sum(-2)
            place = place + (size.cumsum(-1) - size).gather(-1, buckets)  # among all tokens
        of_key = (place // self.chunk_size).unsqueeze(-2)
        of_query = of_key[..., i].mT
        allowed = (of_key == of_query) | (of_key == of_query - 1)  # (B, H, rounds, S, N)
        if self.causal:
            allowed = allowed & (buckets[..., i, None] == buckets.unsqueeze(-2)) & (token <= i[:, None])
        else:
            last = of_key.masked_fill(buckets.unsqueeze(-2) == self.num_buckets, -1).amax(-1, keepdim=True)
            allowed = allowed | (of_query == 0) & (of_key == last)
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, None] & key_mask[:, None, None, i, None]
        with without_autocast(q):
            k = F.normalize(zero_masked(_wide(q), key_mask), dim=-1)
            logits = _wide(q)[:, :, i] @ k.mT * self.head_dim**-0.5
        logits = logits.masked_fill(token == i[:, None], SELF).unsqueeze(2).masked_fill(~allowed, MASKED)
        share = logits.logsumexp(-1, keepdim=True).softmax(2)
        return (share * logits.softmax(-1).masked_fill(~allowed, 0)).sum(2).to(q.dtype)

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        if self.causal:
            return self._causal(q, v, key_mask)[0]
        (batch, _, length, _), size = q.shape, self.chunk_size
        order = self.buckets(q, key_mask).argsort(dim=-1, stable=True)
        slot = order.argsort(-1)
        real = order.new_full((batch, 1), length) if key_mask is None else key_mask.sum(-1, keepdim=True)
        padding = torch.arange(length, device=q.device) >= real[:, None, None]  # it sorts last
        chunks = F.pad(order.masked_fill(padding, -1), (0, -length % size), value=-1).unflatten(
            -1, (-1, size)
        )  # (B, H, rounds, n, C)
        last = ((real - 1) // size).clamp_min(0).view(batch, 1, 1, 1, 1)
        wrap = chunks.gather(-2, last.expand(*chunks.shape[:3], 1, size))
        wrap = wrap.masked_fill(last == 0, -1)  # a single chunk doesn't precede itself
        keys = torch.cat([torch.cat([wrap, chunks[..., :-1, :]], -2), chunks], -1)  # (B, H, rounds, n, 2C)
        k, v = self._keys(q, key_mask), _wide(zero_masked(v, key_mask))
        output = self._chunked(q, k, v, chunks, keys, (keys >= 0).unsqueeze(-2), slot)
        return zero_masked(output, key_mask)

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        """k, v (B, H, rounds, b·2C, D), the n-th key of a bucket in place n mod 2C of its 2C, and its n so far."""
        shape = (batch_size, self.num_heads, self.num_rounds, self.num_buckets)
        kept = (*shape[:3], self.num_buckets * 2 * self.chunk_size, self.head_dim)
        return {
            "k": torch.zeros(kept, device=device, dtype=dtype),
            "v": torch.zeros(kept, device=device, dtype=dtype),
            "seen": torch.zeros(shape, device=device, dtype=torch.long),
        }

    def extend(self, q, k, v, state, key_mask=None):
        return self._causal(q, v, key_mask, state)

    def step(self, q, k, v, state):
        """A single token meets what its buckets have kept: nothing needs laying out."""
        if q.dim() == 3:
            output, state = self.step(q.unsqueeze(2), k, v.unsqueeze(2), state)
            return output.squeeze(2), state
        bucket = self.buckets(q)  # (B, H, rounds, 1)
        seen = state["seen"].gather(-1, bucket)
        rank, _ = self._kept(seen)  # (B, H, rounds, 1, 2C)
        index = bucket * rank.shape[-1] + torch.arange(rank.shape[-1], device=q.device)
        here = index.gather(-1, seen % rank.shape[-1]).unsqueeze(-1)  # the place of the new key
        put = Tensor.scatter if torch.is_grad_enabled() else Tensor.scatter_
        kept = {"seen": put(state["seen"], -1, bucket, seen + 1)}
        for name, x in (("k", self._keys(q, None)), ("v", _wide(v))):
            x = x.unsqueeze(2).expand(-1, -1, self.num_rounds, -1, -1)
            kept[name] = put(state[name].to(x.dtype), 3, here.expand_as(x), x)
        k, v = _take(kept["k"], index), _take(kept["v"], index)  # (B, H, rounds, 2C, D)
        seen = seen.unsqueeze(-1)
        output = self._softmax(_wide(q).unsqueeze(2), k, v, (rank >= 0) & (rank <= seen), rank == seen)
        return _join_rounds(output).to(q.dtype), kept

    def _causal(self, q, v, key_mask=None, state=None):
        """Lays the tokens out bucket by bucket in whole chunks, so that a chunk's predecessor is its neighbour.

        With a state, a bucket begins with the two chunks it has kept, the second of which new tokens fill up. Slots
        hold the index of a key (those of the state come first), or −1.
        """
        size, length, kept = self.chunk_size, q.shape[2], state is not None
        k, v = self._keys(q, key_mask), _wide(zero_masked(v, key_mask))
        buckets = self.buckets(q, key_mask)
        new = buckets.new_zeros(*buckets.shape[:3], self.num_buckets + 1)
        new = new.scatter_add_(-1, buckets, torch.ones_like(buckets))  # tokens per bucket, padding last
        seen = F.pad(state["seen"], (0, 1)) if kept else torch.zeros_like(new)
        chunks = (seen + new) // size - seen // size + 1 + kept  # per bucket
        most = length // size + (self.num_buckets + 1) * (3 if kept else 1)  # in all, whatever the hashes
        start = (chunks.cumsum(-1) - chunks) * size
        offset = start + kept * size + seen % size - (new.cumsum(-1) - new)
        slot = buckets.argsort(dim=-1, stable=True).argsort(-1) + offset.gather(-1, buckets)  # (B, H, rounds, N)
        layout = buckets.new_full((*buckets.shape[:3], most * size), -1)
        old = 0
        if kept:
            old = state["k"].shape[2] * state["k"].shape[3]
            k, v = (torch.cat([state[name].flatten(2, 3).to(x.dtype), x], 2) for name, x in (("k", k), ("v", v)))
            rank, place = self._kept(state["seen"])
            index = torch.arange(old, device=q.device).view(self.num_rounds, self.num_buckets, -1)
            index = torch.where((rank >= 0) & (rank < state["seen"].unsqueeze(-1)), index, -1)
            layout.scatter_(-1, (start[..., :-1, None] + place).flatten(-2), index.flatten(-2))
        token = torch.arange(old, old + length, device=q.device).expand_as(slot)
        layout.scatter_(-1, slot, token if key_mask is None else token.masked_fill(~key_mask[:, None, None], -1))

        chunks = layout.unflatten(-1, (most, size))
        keys = torch.cat([chunks.roll(1, -2), chunks], -1)
        follows = torch.ones_like(chunks[..., 0], dtype=torch.bool).scatter_(-1, start // size, False)
        order = torch.ones(size, 2 * size, device=q.device, dtype=torch.bool).tril(size)
        own = torch.arange(2 * size, device=q.device) >= size
        allowed = (keys >= 0).unsqueeze(-2) & order & (own | follows[..., None, None])
        output = zero_masked(self._chunked(q, k, v, chunks - old, keys, allowed, slot), key_mask)
        if not kept:
            return output, None
        after = state["seen"] + new[..., :-1]
        moved = (after // size - state["seen"] // size) * size
        index = layout.gather(-1, (start[..., :-1, None] + moved.unsqueeze(-1) + self._kept(after)[1]).flatten(-2))
        k, v = (_take(x, index.clamp_min(0)).masked_fill(index.unsqueeze(-1) < 0, 0) for x in (k, v))
        return output, {"k": k, "v": v, "seen": after}

    def _keys(self, q, key_mask):
        return F.normalize(zero_masked(_wide(q), key_mask), dim=-1)

    def _kept(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Of a bucket's 2C places in the state: which of the bucket's keys each is for, and where that one is laid."""
        size = self.chunk_size
        first = (seen // size - 1).unsqueeze(-1) * size  # of the chunk before the one being filled
        place = (torch.arange(2 * size, device=seen.device) - first) % (2 * size)
        return first + place, place

    def _chunked(self, q, k, v, queries, keys, allowed, slot):
        """Queries (.., n, C) and keys (.., n, 2C) of the chunks index q and k, v; `slot` is where each token went."""
        size = self.chunk_size
        itself = torch.eye(size, 2 * size, device=q.device, dtype=torch.bool).roll(size, 1)
        keys = keys.clamp_min(0)
        output = self._softmax(_take(_wide(q), queries.clamp_min(0)), _take(k, keys), _take(v, keys), allowed, itself)
        return _join_rounds(_take(output.flatten(3, 4), slot)).to(q.dtype)  # (B, H, N, D)

    def _softmax(self, q, k, v, allowed, itself):
        """(.., S, D), (.., T, D) -> output and logsumexp side by side, (.., S, D + 1)"""
        with without_autocast(q):
            logits = q @ k.mT * self.head_dim**-0.5
            logits = logits.masked_fill(itself, SELF).masked_fill(~allowed, MASKED)
            weights = F.dropout(logits.softmax(-1).masked_fill(~allowed, 0), self.dropout, self.training)
            return torch.cat([weights @ v, logits.logsumexp(-1, keepdim=True)], -1)


def _join_rounds(output: Tensor) -> Tensor:
    """(B, H, rounds, N, D + 1) -> (B, H, N, D)"""
    return (output[..., -1:].softmax(2) * output[..., :-1]).sum(2)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x (.., N, D), index (.., ·) into N -> (.., ·, D), whole rows at a time."""
    lead, (length, width) = x.shape[:-2], x.shape[-2:]
    base = torch.arange(math.prod(lead), device=x.device).view(*lead, *[1] * (index.dim() - len(lead))) * length
    return x.reshape(-1, width).index_select(0, (index + base).flatten()).view(*index.shape, width)
