"""Bidirectional linear attention over chunks of tokens: the forward pass and the backward pass.

A column of ones stands beside v, so that two products make numerator and denominator, and four make their gradients.
There may be more or fewer queries than keys; with none, keys are only taken into the state.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .autocast import without_autocast
from .tile import Features, Plan, Sums, Tile, tiles_of


class Trail(NamedTuple):
    """What the forward sweep leaves to the backward sweep."""

    before: Tensor | None  # c before the first key
    after: Sums
    keys: list[tuple[Features, Tensor] | None]  # and values of each chunk, where they are kept
    queries: list[Features | None]


class BidirectionalKernelAttention(torch.autograd.Function):
    """(q, k, v, S, c) -> (o, S, c), a tile of the batch at a time; S (B, H, F, Dv + 1), z its last column, or None for
    zeros, c (B, H, F)."""

    @staticmethod
    def forward(ctx, q, k, v, S, c, weight, plan: Plan):
        batch, heads, _, width = v.shape
        length = q.shape[2]
        out = v.new_empty(batch, length, heads, width).transpose(1, 2)  # laid out as the projections are
        den = v.new_empty(batch, heads, length if plan.normalise else 0, 1)
        S_after = v.new_empty(batch, heads, plan.num_features, width + plan.normalise)
        c_after = None if c is None else torch.empty_like(c)
        ctx.tiles, ctx.trails = tiles_of(batch, heads, width, plan), []
        for b in ctx.tiles:
            tile = Tile(v[b], None if weight is None else weight[b], plan)
            trail = _forward(tile, q[b], k[b], v[b], _groups(S, c, b), out[b], den[b])
            S_after[b] = trail.after.S.view_as(S_after[b])
            if c is not None:
                c_after[b] = trail.after.c.view_as(c[b])
            if plan.keep:
                ctx.trails.append(trail)
        if plan.keep:
            ctx.save_for_backward(q, k, v, weight, out, den)
            ctx.plan, ctx.has_state = plan, S is not None
        if c is not None:
            ctx.mark_non_differentiable(c_after)
        ctx.set_materialize_grads(False)
        return out, S_after, c_after

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_S, _):
        q, k, v, weight, out, den = ctx.saved_tensors
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        dq, dk, dv = map(_like, (q, k, v))
        dS = []
        with without_autocast(v):  # backward() may be called inside one
            for b, trail in zip(ctx.tiles, ctx.trails, strict=True):
                tile = Tile(v[b], None if weight is None else weight[b], ctx.plan)
                arrays = (x[b] for x in (out, den, grad_out, dq, dk, dv))
                dS.append(_backward(tile, q[b], k[b], v[b], trail, _groups(grad_S, None, b).S, *arrays))
        if weight is not None:
            dv.masked_fill_((weight == 0).unsqueeze(-1), 0)
        dS = torch.cat(dS).view(*k.shape[:2], *dS[0].shape[1:]) if ctx.has_state else None
        return dq, dk, dv, dS, None, None, None


def _groups(S: Tensor | None, c: Tensor | None, b: slice) -> Sums:
    """Of the rows b: (B, H, F, Dv + 1) and (B, H, F) -> (G, F, Dv + 1) and (G, 1, F)"""
    S, c = None if S is None else S[b].flatten(0, 1), None if c is None else c[b].flatten(0, 1).unsqueeze(1)
    return Sums(S, None, c)


def _forward(tile: Tile, q, k, v, state: Sums, out, den) -> Trail:
    """First every chunk of keys writes to the state, then every chunk of queries, if there are any, reads it."""
    keep, kept_keys, kept_queries, before = tile.plan.keep_features, [], [], state.c
    for at in tile.chunks:
        keys, top = tile.keys(k, at, state.c)
        values = tile.values(v, at, ones=tile.plan.normalise, lasting=keep)
        kept_keys.append((keys, values) if keep else None)
        S, _, c = state.relative_to(state.c, top)
        state = Sums(_plus_product(S, keys.phi.transpose(1, 2), values), None, c)
    for at in tile.cut(q.shape[2]):
        queries = tile.queries(q, at, state.c)
        kept_queries.append(queries if keep else None)
        tile.write(*tile.split(tile.product("readout", queries.phi, state.S)), out, den, at)
    return Trail(before, state, kept_keys, kept_queries)


def _backward(tile: Tile, q, k, v, trail: Trail, R: Tensor | None, out, den, grad_out, dq, dk, dv) -> Tensor:
    """R = dL/dS after the last key -> that before the first"""
    S, _, c = trail.after
    for at, kept in zip(tile.cut(q.shape[2]), trail.queries, strict=True):
        queries = tile.restored("queries", kept, at) if kept else tile.queries(q, at, c)
        g = tile.joint_cotangents(grad_out, out, den, at)
        R = _plus_product(R, queries.phi.transpose(1, 2), g)
        tile.pull_back_product(g, S.transpose(1, 2), queries, q, dq, at)
    for at, kept in zip(tile.chunks, trail.keys, strict=True):
        if kept:
            keys, values = tile.restored("keys", kept[0], at), kept[1]
        else:
            keys, values = tile.keys(k, at, c, c)[0], tile.values(v, at, ones=tile.plan.normalise)
        dv[:, :, at] = tile.heads_apart(tile.split(tile.product("readout", keys.phi, R))[0], at)
        tile.pull_back_product(values, R.transpose(1, 2), keys, k, dk, at)
    return Sums(R, None).relative_to(trail.before, c).S


def _like(x: Tensor) -> Tensor:
    """An empty (B, H, N, D) with heads first in memory as in x, or else laid out as projections are"""
    return x.new_empty(x.shape) if x.is_contiguous() else x.new_empty(x.transpose(1, 2).shape).transpose(1, 2)


def _plus_product(S: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a, b) if S is None else torch.baddbmm(S, a, b)
