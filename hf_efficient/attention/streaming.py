"""How kernel attention is computed: streaming over chunks, forward and backward. `kernel.py` says what.

What makes it fast on a CPU: a chunk is worked on in scratch memory that stays in cache and is kept between calls;
features are made there and remade in the backward pass, so an (N, F) tensor never exists; a chunk is split into
blocks that go through each matmul as one batch, so few large calls do the work of small causal blocks; inputs are
read from, and results written to, the projections' (B, N, H, D) memory, so heads are never copied apart.

The backward pass keeps inputs, output, denominator and one state per chunk, and is a single reverse sweep.
"""

import math
import threading
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Elements of one scratch buffer: a dozen of them fit into a CPU's last-level cache.
TILE = 2**18

_kept = threading.local()


class FeatureMap:
    """φ of one chunk. As it stands: features handed over ready-made.

    A `stabilised` map writes a = log φ; the engine makes exp(a) + `floor` of it.
    """

    stabilised = False
    floor = 0.0

    def num_features(self, head_dim: int) -> int:
        return head_dim

    def write(self, x: Tensor, out: Tensor, spare: Tensor) -> None:
        """x (B, H, L, D) -> out (B, H, L, F); `spare` has the shape of `out` and may be scribbled on."""
        out.copy_(x)

    def vjp(self, x: Tensor, out: Tensor, grad: Tensor, target: Tensor) -> None:
        """dL/dout -> dL/dx, written to `target` (B, H, L, D); `out` and `grad` may be scribbled on."""
        target.copy_(grad)


class LogFeatureMap(FeatureMap):
    """Features handed over as logarithms."""

    stabilised = True


class Plan(NamedTuple):
    feature_map: FeatureMap
    num_features: int
    chunk_size: int
    block_size: int
    normalise: bool
    eps: float
    keep: bool  # for the backward pass


class _Features(NamedTuple):
    phi: Tensor  # (G, L, F)
    slope: Tensor | None  # dφ/da of a stabilised map


class _Tile:
    """Some rows of the batch: G = B·H groups, worked on chunk by chunk, L rows each (padded to whole blocks)."""

    def __init__(self, v: Tensor, weight: Tensor | None, plan: Plan):
        self.plan, self.weight, self.like = plan, weight, v
        self.batch, self.heads, length, self.value_dim = v.shape
        self.groups, self.width = self.batch * self.heads, self.value_dim + plan.normalise
        self.chunks = [slice(a, min(a + plan.chunk_size, length)) for a in range(0, length, plan.chunk_size)]
        self.own = {}

    def scratch(self, name: str, *shape: int) -> Tensor:
        """A contiguous tensor: the same memory on every call with this name.

        Kept between calls on a CPU, whose allocator would give it back to the system and fault every page in again.
        """
        size = math.prod(shape)
        buffers, key = self.own, name
        if self.like.device.type == "cpu" and size <= 4 * TILE and not torch.compiler.is_compiling():
            buffers, key = _kept.__dict__, (name, self.like.dtype)
        if key not in buffers or buffers[key].numel() < size:
            with torch.inference_mode(False):
                buffers[key] = self.like.new_empty(size)
        return buffers[key][:size].view(shape)

    def padded(self, at: slice) -> int:
        return -(-(at.stop - at.start) // self.plan.block_size) * self.plan.block_size

    def zero_padding(self, x: Tensor, at: slice) -> None:
        if x.shape[1] > at.stop - at.start:
            x[:, at.stop - at.start :] = 0

    def heads_apart(self, x: Tensor, at: slice) -> Tensor:
        """(G, L, ·) -> (B, H, real rows, ·), a view"""
        return x.view(self.batch, self.heads, *x.shape[1:])[:, :, : at.stop - at.start]

    def load(self, name: str, x: Tensor, at: slice, width: int) -> Tensor:
        """x[:, :, at] -> (G, L, width), zero in the padding rows."""
        buffer = self.scratch(name, self.groups, self.padded(at), width)
        self.heads_apart(buffer, at)[..., : x.shape[-1]].copy_(x[:, :, at])
        self.zero_padding(buffer, at)
        return buffer

    def blocks(self, x: Tensor) -> Tensor:
        """(G, L, ·) -> (G·L/C, C, ·)"""
        return x.view(-1, self.plan.block_size, x.shape[-1])

    def product(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b, out=self.scratch(name, a.shape[0], a.shape[1], b.shape[2]))

    def values(self, v: Tensor, at: slice) -> Tensor:
        """(G, L, Dv + 1): v beside a column of ones."""
        u = self.load("value", v, at, self.width)
        if self.plan.normalise:
            u[..., -1] = 1
        if self.weight is not None:  # masked values may hold anything, NaN too, which weight 0 alone would not stop
            u[:, : at.stop - at.start].masked_fill_(self.weight[..., at].flatten(0, 1).unsqueeze(-1) == 0, 0)
        return u

    def features(self, name: str, x: Tensor, at: slice) -> Tensor:
        """The map's output (G, L, F) for a chunk; what stands in the padding rows is undefined."""
        shape = self.groups, self.padded(at), self.plan.num_features
        out, spare = self.scratch(name, *shape), self.scratch("spare", *shape)
        self.plan.feature_map.write(x[:, :, at], self.heads_apart(out, at), self.heads_apart(spare, at))
        return out

    def keys(self, k: Tensor, at: slice, c: Tensor | None) -> tuple[_Features, Tensor | None]:
        """Features of a chunk's keys relative to the running maximum, and that maximum (G, 1, F)."""
        phi, slope, real = self.features("keys", k, at), None, at.stop - at.start
        weight = None if self.weight is None else self.weight[..., at].flatten(0, 1).unsqueeze(-1)
        if self.plan.feature_map.stabilised:
            if weight is not None:
                phi[:, :real].masked_fill_(weight == 0, -math.inf)
            if phi.shape[1] > real:
                phi[:, real:] = -math.inf
            c = torch.maximum(c, phi.amax(1, keepdim=True))
            slope = phi.sub_(c).exp_()
            if self.plan.feature_map.floor:
                floor = torch.exp(math.log(self.plan.feature_map.floor) - c)
                phi = torch.add(slope, floor, out=self.scratch("keys + floor", *slope.shape))
        self.zero_padding(phi, at)
        if weight is not None:
            for x in (phi,) if slope is None or slope is phi else (phi, slope):
                x[:, :real].mul_(weight).masked_fill_(weight == 0, 0)
        return _Features(phi, slope), c

    def queries(self, q: Tensor, at: slice, c: Tensor | None) -> _Features:
        """Features of a chunk's queries, to go with keys relative to the maximum c."""
        phi, feature_map = self.features("queries", q, at), self.plan.feature_map
        self.zero_padding(phi, at)
        if not feature_map.stabilised:
            return _Features(phi, None)
        phi.add_(c)
        floor = c + math.log(feature_map.floor) if feature_map.floor else None
        if self.plan.normalise:  # a factor per row cancels in the ratio; this one keeps it in range
            top = phi.amax(-1, keepdim=True)
            if floor is not None:
                top = torch.maximum(top, floor.amax(-1, keepdim=True))
                floor = torch.sub(floor, top, out=self.scratch("queries + floor", *phi.shape))
            phi.sub_(top)
        slope = phi.exp_()
        if floor is not None:
            phi = floor.exp_().add_(slope)
        return _Features(phi, slope)

    def pull_back(self, grad: Tensor, features: _Features, x: Tensor, target: Tensor, at: slice) -> None:
        """dL/dφ -> dL/dx"""
        phi = features.phi
        if features.slope is not None:
            grad, phi = grad.mul_(features.slope), features.slope
        grad, phi = self.heads_apart(grad, at), self.heads_apart(phi, at)
        self.plan.feature_map.vjp(x[:, :, at], phi, grad, target[:, :, at])

    def write(self, readout: Tensor, out: Tensor, den: Tensor, at: slice) -> None:
        """Readout (G, L, Dv + 1) -> numerator / denominator."""
        readout = self.heads_apart(readout, at)
        if not self.plan.normalise:
            out[:, :, at] = readout
            return
        denominator = torch.add(readout[..., -1:], self.plan.eps, out=den[:, :, at])
        denominator.masked_fill_(denominator == 0, math.inf)  # a query that sees no key outputs 0
        torch.div(readout[..., :-1], denominator, out=out[:, :, at])

    def cotangents(self, grad_out: Tensor, out: Tensor, den: Tensor, at: slice) -> Tensor:
        """dL/dreadout (G, L, Dv + 1): through the ratio o = n/d, dL/dn = g/d and dL/dd = −(g/d)·o."""
        g = self.load("cotangent", grad_out, at, self.width)
        if self.plan.normalise:
            real = self.heads_apart(g, at)
            numerator = real[..., :-1].div_(den[:, :, at])
            spare = self.heads_apart(self.scratch("g·o", self.groups, g.shape[1], self.value_dim), at)
            torch.sum(torch.mul(numerator, out[:, :, at], out=spare), -1, out=real[..., -1])
            real[..., -1].neg_()
        return g

    def accumulate(self, S: Tensor, updates: Tensor, backwards: bool = False) -> tuple[Tensor, Tensor]:
        """The state that each block meets (G·J, F, E), and the one after the last; a triangular matmul over blocks."""
        shape, updates = updates.shape, updates.view(self.groups, -1, updates[0].numel())  # (G, J, F·E)
        count = updates.shape[1]
        met = self.scratch("met backwards" if backwards else "met", *updates.shape)
        order = updates.new_ones(count, count).tril_(-1)
        order = (order.T if backwards else order).expand(self.groups, count, count)
        torch.baddbmm(S.reshape(self.groups, 1, -1), order, updates, out=met)
        last = 0 if backwards else -1
        return met.view(shape), torch.add(met[:, last], updates[:, last]).view_as(S)


def _rescale(S: Tensor, old: Tensor, new: Tensor) -> Tensor:
    return S * torch.exp(old - new).transpose(1, 2)


def _causal(tile: _Tile, q, k, v, S, c, out, den):
    """Per block: o = φ_q S + tril(φ_q φ_kᵀ) u, then S += φ_kᵀ u. Returns (S, c) before each chunk and at the end."""
    trail, size = [(S, c)], tile.plan.block_size
    mask = v.new_ones(size, size).tril_()
    for at in tile.chunks:
        keys, top = tile.keys(k, at, c)
        if c is not None:
            S = _rescale(S, c, top)
        queries, keys, u = map(tile.blocks, (tile.queries(q, at, top).phi, keys.phi, tile.values(v, at)))
        states, S = tile.accumulate(S, tile.product("updates", keys.transpose(1, 2), u))
        c = top
        scores = tile.product("scores", queries, keys.transpose(1, 2)).mul_(mask)
        readout = tile.product("readout", queries, states).baddbmm_(scores, u)
        tile.write(readout.view(tile.groups, -1, tile.width), out, den, at)
        trail.append((S, c))
    return trail


def _causal_backward(tile: _Tile, q, k, v, trail, R, out, den, grad_out, dq, dk, dv):
    """One reverse sweep; R is dL/dS after the chunk. Returns dL/dS before the first."""
    size = tile.plan.block_size
    mask = v.new_ones(size, size).tril_()
    for i in reversed(range(len(tile.chunks))):
        at, (S, before), (_, after) = tile.chunks[i], trail[i], trail[i + 1]
        key_features, query_features = tile.keys(k, at, before)[0], tile.queries(q, at, after)
        keys, queries = tile.blocks(key_features.phi), tile.blocks(query_features.phi)
        u, g = tile.blocks(tile.values(v, at)), tile.blocks(tile.cotangents(grad_out, out, den, at))
        S = S if before is None else _rescale(S, before, after)
        states, _ = tile.accumulate(S, tile.product("updates", keys.transpose(1, 2), u))
        grad_states, R = tile.accumulate(R, tile.product("updates", queries.transpose(1, 2), g), backwards=True)
        if before is not None:
            R = _rescale(R, before, after)
        scores = tile.product("scores", queries, keys.transpose(1, 2)).mul_(mask)
        grad_scores = tile.product("grad scores", g, u.transpose(1, 2)).mul_(mask)

        grad_u = tile.product("readout", keys, grad_states).baddbmm_(scores.transpose(1, 2), g)
        dv[:, :, at] = tile.heads_apart(grad_u.view(tile.groups, -1, tile.width), at)[..., : tile.value_dim]
        grad = tile.product("grad queries", g, states.transpose(1, 2)).baddbmm_(grad_scores, keys)
        grad_k = tile.product("grad keys", u, grad_states.transpose(1, 2))
        grad_k.baddbmm_(grad_scores.transpose(1, 2), queries)
        tile.pull_back(grad.view_as(query_features.phi), query_features, q, dq, at)
        tile.pull_back(grad_k.view_as(key_features.phi), key_features, k, dk, at)
    return R


def _bidirectional(tile: _Tile, q, k, v, S, c, out, den):
    """First every chunk writes to the state, then every chunk reads it."""
    trail = [(S, c)]
    for at in tile.chunks:
        keys, top = tile.keys(k, at, c)
        S = torch.baddbmm(S if c is None else _rescale(S, c, top), keys.phi.transpose(1, 2), tile.values(v, at))
        c = top
    for at in tile.chunks:
        tile.write(tile.product("readout", tile.queries(q, at, c).phi, S), out, den, at)
    return [*trail, (S, c)]


def _bidirectional_backward(tile: _Tile, q, k, v, trail, R, out, den, grad_out, dq, dk, dv):
    (_, before), (S, c) = trail
    for at in tile.chunks:
        queries, g = tile.queries(q, at, c), tile.cotangents(grad_out, out, den, at)
        R = torch.baddbmm(R, queries.phi.transpose(1, 2), g)
        tile.pull_back(tile.product("grad queries", g, S.transpose(1, 2)), queries, q, dq, at)
    for at in tile.chunks:
        keys, u = tile.keys(k, at, c)[0], tile.values(v, at)
        dv[:, :, at] = tile.heads_apart(tile.product("readout", keys.phi, R), at)[..., : tile.value_dim]
        tile.pull_back(tile.product("grad keys", u, R.transpose(1, 2)), keys, k, dk, at)
    return R if c is None else _rescale(R, before, c)


class StreamedKernelAttention(torch.autograd.Function):
    """(q, k, v, S, c) -> (o, S, c), a tile of the batch at a time; S (B, H, F, E), c (B, H, F)."""

    @staticmethod
    def forward(ctx, q, k, v, S, c, weight, plan, causal):
        batch, heads, length, width = v.shape
        out = v.new_empty(batch, length, heads, width).transpose(1, 2)  # laid out as the projections are
        den = v.new_empty(batch, heads, length if plan.normalise else 0, 1)
        S_after, c_after = torch.empty_like(S), None if c is None else torch.empty_like(c)
        ctx.trails = []
        rows = max(1, TILE // (heads * plan.chunk_size * plan.num_features))
        ctx.tiles = [slice(a, a + rows) for a in range(0, batch, rows)]
        for b in ctx.tiles:
            tile = _Tile(v[b], None if weight is None else weight[b], plan)
            top = None if c is None else c[b].flatten(0, 1).unsqueeze(1)
            sweep = _causal if causal else _bidirectional
            trail = sweep(tile, q[b], k[b], v[b], S[b].flatten(0, 1), top, out[b], den[b])
            S_after[b] = trail[-1][0].unflatten(0, (-1, heads))
            if c is not None:
                c_after[b] = trail[-1][1].squeeze(1).unflatten(0, (-1, heads))
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
        with torch.autocast(v.device.type, enabled=False):  # backward() may be called inside one
            for b, trail in zip(ctx.tiles, ctx.trails, strict=True):
                tile = _Tile(v[b], None if weight is None else weight[b], ctx.plan)
                sweep = _causal_backward if ctx.causal else _bidirectional_backward
                arrays = (x[b] for x in (out, den, grad_out, dq, dk, dv))
                R = sweep(tile, q[b], k[b], v[b], trail, grad_S[b].flatten(0, 1), *arrays)
                dS[b] = R.unflatten(0, (-1, v.shape[1]))
        if weight is not None:
            dv.masked_fill_((weight == 0).unsqueeze(-1), 0)
        return dq, dk, dv, dS, None, None, None, None
