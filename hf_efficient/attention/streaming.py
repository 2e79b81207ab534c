"""How kernel attention is computed: streaming over chunks, forward and backward. `kernel.py` says what.

What makes it fast on a CPU, beside `tile.py`: features are remade in the backward pass where they are many; a chunk is
split into blocks that go through each matmul as one batch, so few large calls do the work of small causal blocks;
inputs are read from, and results written to, the projections' (B, N, H, D) memory, so heads are never copied apart.

The backward pass is a single reverse sweep. It keeps inputs, output, denominator and the scores within blocks; where
features are few, also them and the state that each block met, which otherwise are made again: O(N) numbers.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .tile import Features, Tile, tiles_of


class _State(NamedTuple):
    S: Tensor | None  # (G, F, Dv); None where it is not needed any more
    z: Tensor | None  # (G, 1, F), for normalised kernels
    c: Tensor | None = None  # (G, 1, F), for stabilised features

    def relative_to(self, c: Tensor | None, top: Tensor | None) -> "_State":
        """Moved from the maximum c to another."""
        if c is None:
            return _State(self.S, self.z)
        factor = torch.exp2(c - top)
        S = None if self.S is None else self.S * factor.transpose(1, 2)
        return _State(S, None if self.z is None else self.z * factor, top)


def _block_sums(tile: Tile, keys: Tensor) -> Tensor:
    """(G·J, C, F) -> (G·J, 1, F)"""
    return torch.sum(keys, 1, keepdim=True, out=tile.scratch("sums", keys.shape[0], 1, keys.shape[2]))


class _Trail(NamedTuple):
    """What the forward sweep leaves to the backward sweep."""

    between: list[_State]  # chunks; without S where nobody will read it
    scores: list[Tensor]
    states: list[Tensor | None]  # that each block met
    features: list[tuple[Features, Features] | Features | None]  # of queries and keys; bidirectional: of keys


def _causal(tile: Tile, q, k, v, state: _State, out, den) -> tuple[_State, _Trail]:
    """Per block: n = φ_q S + tril(φ_q φ_kᵀ) v, then S += φ_kᵀ v. Returns the state after the last, and the trail."""
    trail, plan, mass = _Trail([], [], [], []), tile.plan, None
    mask = tile.triangle(plan.block_size)
    for at in tile.chunks:
        trail.between.append(state._replace(S=None) if plan.keep_features else state)
        key_features, top = tile.keys(k, at, state.c)
        query_features = tile.queries(q, at, top)
        S, z, c = state.relative_to(state.c, top)
        queries, keys, values = map(tile.blocks, (query_features.phi, key_features.phi, tile.values(v, at)))
        updates = tile.product("updates", keys.transpose(1, 2), values)
        states, S = tile.accumulate("states", S, updates, lasting=plan.keep_features)
        scores = tile.product("scores", queries, keys.transpose(1, 2), lasting=plan.keep).mul_(mask)
        readout = tile.product("readout", queries, states).baddbmm_(scores, values)
        if z is not None:
            sums, z = tile.accumulate("met sums", z, _block_sums(tile, keys))
            mass = torch.bmm(queries, sums.transpose(1, 2)).add_(scores.sum(-1, keepdim=True))
            mass = mass.view(tile.groups, -1, 1)
        tile.write(readout.view(tile.groups, -1, tile.value_dim), mass, out, den, at)
        state = _State(S, z, c)
        if plan.keep:
            trail.scores.append(scores)
            trail.states.append(states if plan.keep_features else None)
            trail.features.append((query_features, key_features) if plan.keep_features else None)
    trail.between.append(state._replace(S=None))
    return state, trail


def _causal_backward(tile: Tile, q, k, v, trail: _Trail, grad: _State, out, den, grad_out, dq, dk, dv) -> _State:
    """One reverse sweep; `grad` is dL/dstate after the chunk. Returns that before the first."""
    R, r = grad.S, grad.z
    size = tile.plan.block_size
    mask = tile.triangle(size)
    for i in reversed(range(len(tile.chunks))):
        at, before, top = tile.chunks[i], trail.between[i], trail.between[i + 1].c
        scores, states = trail.scores[i], trail.states[i]
        S, z, _ = before.relative_to(before.c, top)
        if kept := trail.features[i]:
            query_features, key_features = tile.restored("queries", kept[0], at), tile.restored("keys", kept[1], at)
        else:
            query_features, key_features = tile.queries(q, at, top), tile.keys(k, at, before.c, top)[0]
        keys, queries, values = map(tile.blocks, (key_features.phi, query_features.phi, tile.values(v, at)))
        if states is None:
            updates = tile.product("updates", keys.transpose(1, 2), values)
            states, _ = tile.accumulate("states", S, updates)
        g, h = tile.cotangents(grad_out, out, den, at)
        g = tile.blocks(g)
        update = tile.product("updates", queries.transpose(1, 2), g)
        grad_states, R = tile.accumulate("grad states", R, update, backwards=True)
        grad_scores = tile.product("grad scores", g, values.transpose(1, 2))
        if h is not None:
            grad_scores.add_(h.view(-1, size, 1))
        grad_scores.mul_(mask)

        grad_v = tile.product("readout", keys, grad_states).baddbmm_(scores.transpose(1, 2), g)
        dv[:, :, at] = tile.heads_apart(grad_v.view(tile.groups, -1, tile.value_dim), at)
        grad_q = tile.product("grad queries", g, states.transpose(1, 2)).baddbmm_(grad_scores, keys)
        grad_k = tile.product("spare", values, grad_states.transpose(1, 2))
        grad_k.baddbmm_(grad_scores.transpose(1, 2), queries)
        if h is not None:
            h = h.view(-1, size, 1)
            sums, _ = tile.accumulate("met sums", z, _block_sums(tile, keys))
            grad_q.addcmul_(h, sums)
            grad_sums, r = tile.accumulate("met sums", r, torch.bmm(h.transpose(1, 2), queries), backwards=True)
            grad_k.add_(grad_sums)
        R, r, _ = _State(R, r).relative_to(before.c, top)
        tile.pull_back(grad_q.view_as(query_features.phi), query_features, q, dq, at)
        tile.pull_back(grad_k.view_as(key_features.phi), key_features, k, dk, at)
    return _State(R, r)


def _bidirectional(tile: Tile, q, k, v, state: _State, out, den) -> tuple[_State, _Trail]:
    """First every chunk of keys writes to the state, then every chunk of queries, if there are any, reads it."""
    start, kept = state, []
    for at in tile.chunks:
        keys, top = tile.keys(k, at, state.c)
        kept.append(keys if tile.plan.keep_features else None)
        S, z, c = state.relative_to(state.c, top)
        S = torch.baddbmm(S, keys.phi.transpose(1, 2), tile.values(v, at))
        state = _State(S, None if z is None else z + keys.phi.sum(1, keepdim=True), c)
    for at in tile.cut(q.shape[2]):
        queries = tile.queries(q, at, state.c).phi
        mass = None if state.z is None else torch.bmm(queries, state.z.transpose(1, 2))
        tile.write(tile.product("readout", queries, state.S), mass, out, den, at)
    read = state if q.shape[2] else state._replace(S=None)
    return state, _Trail([start._replace(S=None), read], [], [], kept)


def _bidirectional_backward(tile: Tile, q, k, v, trail: _Trail, grad: _State, out, den, grad_out, dq, dk, dv):
    start, (S, z, c) = trail.between
    R, r = grad.S, grad.z
    for at in tile.cut(q.shape[2]):
        queries, (g, h) = tile.queries(q, at, c), tile.cotangents(grad_out, out, den, at)
        grad_q = tile.product("grad queries", g, S.transpose(1, 2))
        R = torch.baddbmm(R, queries.phi.transpose(1, 2), g)
        if h is not None:
            grad_q.addcmul_(h, z)
            r = torch.baddbmm(r, h.transpose(1, 2), queries.phi)
        tile.pull_back(grad_q, queries, q, dq, at)
    for at, kept in zip(tile.chunks, trail.features, strict=True):
        keys = tile.restored("keys", kept, at) if kept else tile.keys(k, at, c, c)[0]
        values = tile.values(v, at)
        dv[:, :, at] = tile.heads_apart(tile.product("readout", keys.phi, R), at)
        grad_k = tile.product("spare", values, R.transpose(1, 2))
        tile.pull_back(grad_k if r is None else grad_k.add_(r), keys, k, dk, at)
    return _State(R, r).relative_to(start.c, c)


class StreamedKernelAttention(torch.autograd.Function):
    """(q, k, v, S, c) -> (o, S, c), a tile of the batch at a time; S (B, H, F, Dv + 1) with z last, c (B, H, F)."""

    @staticmethod
    def forward(ctx, q, k, v, S, c, weight, plan, causal):
        batch, heads, _, width = v.shape
        length = q.shape[2]
        out = v.new_empty(batch, length, heads, width).transpose(1, 2)  # laid out as the projections are
        den = v.new_empty(batch, heads, length if plan.normalise else 0, 1)
        S_after, c_after = torch.empty_like(S), None if c is None else torch.empty_like(c)
        ctx.trails = []
        ctx.tiles = tiles_of(batch, heads, width, plan)
        S = S.clone() if plan.keep else S  # the backward pass reads it; the caller may step it in place before that
        for b in ctx.tiles:
            tile = Tile(v[b], None if weight is None else weight[b], plan)
            state = _split(S[b], width, None if c is None else c[b])
            state, trail = (_causal if causal else _bidirectional)(tile, q[b], k[b], v[b], state, out[b], den[b])
            _join(state, S_after[b])
            if c is not None:
                c_after[b] = state.c.view_as(c[b])
            if plan.keep:
                ctx.trails.append(trail)
        if plan.keep:
            ctx.save_for_backward(q, k, v, weight, out, den)
            ctx.plan, ctx.causal = plan, causal
        if c is not None:
            ctx.mark_non_differentiable(c_after)
        return out, S_after, c_after

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_S, _):
        q, k, v, weight, out, den = ctx.saved_tensors
        dq, dk, dv = (x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in (q, k, v))
        dS = torch.empty_like(grad_S)
        sweep = _causal_backward if ctx.causal else _bidirectional_backward
        with torch.autocast(v.device.type, enabled=False):  # backward() may be called inside one
            for b, trail in zip(ctx.tiles, ctx.trails, strict=True):
                tile = Tile(v[b], None if weight is None else weight[b], ctx.plan)
                arrays = (x[b] for x in (out, den, grad_out, dq, dk, dv))
                grad = sweep(tile, q[b], k[b], v[b], trail, _split(grad_S[b], v.shape[-1]), *arrays)
                _join(grad, dS[b])
        if weight is not None:
            dv.masked_fill_((weight == 0).unsqueeze(-1), 0)
        return dq, dk, dv, dS, None, None, None, None


def _split(S: Tensor, width: int, c: Tensor | None = None) -> _State:
    """(B, H, F, Dv + 1) and (B, H, F) -> S, z and c of the groups"""
    S = S.flatten(0, 1)
    z = S[..., width].unsqueeze(1).contiguous() if S.shape[-1] > width else None  # a view would keep all of S
    return _State(S[..., :width], z, None if c is None else c.flatten(0, 1).unsqueeze(1))


def _join(state: _State, target: Tensor) -> None:
    """S and z of the groups -> (B, H, F, Dv + 1)"""
    width = state.S.shape[-1]
    target[..., :width] = state.S.view(*target.shape[:3], width)
    if state.z is not None:
        target[..., width] = state.z.view(target.shape[:3])
