"""Bidirectional linear attention over chunks of tokens: the forward pass and the backward pass.

There may be more or fewer queries than keys; with none, keys are only taken into the state.
"""

import torch

from .tile import Sums, Tile, Trail


def bidirectional_forward(tile: Tile, q, k, v, state: Sums, out, den) -> tuple[Sums, Trail]:
    """First every chunk of keys writes to the state, then every chunk of queries, if there are any, reads it."""
    start, kept = state, []
    for at in tile.chunks:
        keys, top = tile.keys(k, at, state.c)
        kept.append(keys if tile.plan.keep_features else None)
        S, z, c = state.relative_to(state.c, top)
        S = torch.baddbmm(S, keys.phi.transpose(1, 2), tile.values(v, at))
        state = Sums(S, None if z is None else z + keys.phi.sum(1, keepdim=True), c)
    for at in tile.cut(q.shape[2]):
        queries = tile.queries(q, at, state.c).phi
        mass = None if state.z is None else torch.bmm(queries, state.z.transpose(1, 2))
        tile.write(tile.product("readout", queries, state.S), mass, out, den, at)
    read = state if q.shape[2] else state._replace(S=None)
    return state, Trail([start._replace(S=None), read], [], [], kept)


def bidirectional_backward(tile: Tile, q, k, v, trail: Trail, grad: Sums, out, den, grad_out, dq, dk, dv):
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
    return Sums(R, r).relative_to(start.c, c)
