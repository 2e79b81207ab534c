"""Causal linear attention over chunks of tokens: the forward pass and the backward pass.

A chunk is split into blocks that go through each matmul as one batch, so few large calls do the work of small causal
blocks. The backward pass is a single reverse sweep. It keeps inputs, output, denominator and the scores within blocks;
where features are few, also them and the state that each block met, which otherwise are made again: O(N) numbers.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .autocast import without_autocast
from .tile import Features, Sums, Tile, tiles_of


class Trail(NamedTuple):
    """What the forward sweep leaves to the backward sweep."""

    between: list[Sums]  # chunks; without S where nobody will read it
    scores: list[Tensor]
    states: list[Tensor | None]  # that each block met
    features: list[tuple[Features, Features] | None]  # of queries and keys


class CausalKernelAttention(torch.autograd.Function):
    """(q, k, v, S, c) -> (o, S, c), a tile of the batch at a time; S (B, H, F, Dv + 1) with z last, c (B, H, F)."""

    @staticmethod
    def forward(ctx, q, k, v, S, c, weight, plan):
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
            state, trail = _forward(tile, q[b], k[b], v[b], state, out[b], den[b])
            _join(state, S_after[b])
            if c is not None:
                c_after[b] = state.c.view_as(c[b])
            if plan.keep:
                ctx.trails.append(trail)
        if plan.keep:
            ctx.save_for_backward(q, k, v, weight, out, den)
            ctx.plan = plan
        if c is not None:
            ctx.mark_non_differentiable(c_after)
        return out, S_after, c_after

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_S, _):
        q, k, v, weight, out, den = ctx.saved_tensors
        dq, dk, dv = (x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in (q, k, v))
        dS = torch.empty_like(grad_S)
        with without_autocast(v):  # backward() may be called inside one
            for b, trail in zip(ctx.tiles, ctx.trails, strict=True):
                tile = Tile(v[b], None if weight is None else weight[b], ctx.plan)
                arrays = (x[b] for x in (out, den, grad_out, dq, dk, dv))
                grad = _backward(tile, q[b], k[b], v[b], trail, _split(grad_S[b], v.shape[-1]), *arrays)
                _join(grad, dS[b])
        if weight is not None:
            dv.masked_fill_((weight == 0).unsqueeze(-1), 0)
        return dq, dk, dv, dS, None, None, None


def _forward(tile: Tile, q, k, v, state: Sums, out, den) -> tuple[Sums, Trail]:
    """Per block: n = φ_q S + tril(φ_q φ_kᵀ) v, then S += φ_kᵀ v. Returns the state after the last, and the trail."""
    trail, plan, mass = Trail([], [], [], []), tile.plan, None
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
        state = Sums(S, z, c)
        if plan.keep:
            trail.scores.append(scores)
            trail.states.append(states if plan.keep_features else None)
            trail.features.append((query_features, key_features) if plan.keep_features else None)
    trail.between.append(state._replace(S=None))
    return state, trail


def _backward(tile: Tile, q, k, v, trail: Trail, grad: Sums, out, den, grad_out, dq, dk, dv) -> Sums:
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
        R, r, _ = Sums(R, r).relative_to(before.c, top)
        tile.pull_back(grad_q.view_as(query_features.phi), query_features, q, dq, at)
        tile.pull_back(grad_k.view_as(key_features.phi), key_features, k, dk, at)
    return Sums(R, r)


def _block_sums(tile: Tile, keys: Tensor) -> Tensor:
    """(G·J, C, F) -> (G·J, 1, F)"""
    return torch.sum(keys, 1, keepdim=True, out=tile.scratch("sums", keys.shape[0], 1, keys.shape[2]))


def _split(S: Tensor, width: int, c: Tensor | None = None) -> Sums:
    """(B, H, F, Dv + 1) and (B, H, F) -> S, z and c of the groups"""
    S = S.flatten(0, 1)
    z = S[..., width].unsqueeze(1).contiguous() if S.shape[-1] > width else None  # a view would keep all of S
    return Sums(S[..., :width], z, None if c is None else c.flatten(0, 1).unsqueeze(1))


def _join(state: Sums, target: Tensor) -> None:
    """S and z of the groups -> (B, H, F, Dv + 1)"""
    width = state.S.shape[-1]
    target[..., :width] = state.S.view(*target.shape[:3], width)
    if state.z is not None:
        target[..., width] = state.z.view(target.shape[:3])
