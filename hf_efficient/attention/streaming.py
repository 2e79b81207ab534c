"""How kernel attention is computed: streaming over chunks, forward and backward. `kernel.py` says what.

What makes it fast on a CPU: a chunk is worked on in scratch memory that stays in cache and is kept between calls;
features are made there and, where they are many, remade in the backward pass, so that they never exist all at once; a
chunk is split into blocks that go through each matmul as one batch, so few large calls do the work of small causal
blocks; inputs are read from, and results written to, the projections' (B, N, H, D) memory, so heads are never copied
apart.

The backward pass is a single reverse sweep. It keeps inputs, output, denominator, the scores within blocks, the state
that each block met, and the features where they are few: O(N) numbers.
"""

import math
import threading
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .feature_map import FeatureMap

# Elements of one scratch buffer: larger ones leave the cache, smaller ones pay more calls per token. Measured best.
TILE = 2**20

_kept = threading.local()


class Plan(NamedTuple):
    feature_map: FeatureMap
    num_features: int
    chunk_size: int
    block_size: int
    normalise: bool
    eps: float
    keep: bool  # what the backward pass needs
    keep_features: bool  # where they are few: cheaper to read than to make again


class _Features(NamedTuple):
    phi: Tensor  # (G, L, F)
    mapped: Tensor  # what the map wrote, or for stabilised maps its exponential
    slope: Tensor | None  # dφ/d(what the map wrote), None = 1
    floor: Tensor | float = 0.0  # what φ has above the slope, where that is all the difference


class _Tile:
    """Some rows of the batch: G = B·H groups, worked on chunk by chunk, L rows each (padded to whole blocks)."""

    def __init__(self, v: Tensor, weight: Tensor | None, plan: Plan):
        self.plan, self.weight, self.like = plan, weight, v
        self.batch, self.heads, length, self.value_dim = v.shape
        self.groups = self.batch * self.heads
        self.chunks = self.cut(length)
        keep = v.device.type == "cpu" and not torch.compiler.is_compiling()
        self.kept, self.dtype = _kept.__dict__ if keep else {}, v.dtype

    def cut(self, length: int) -> list[slice]:
        """Into chunks of whole blocks, about equally long: a short last one would cost as many calls as a long one."""
        count, block = max(1, -(-length // self.plan.chunk_size)), self.plan.block_size
        size = -(-length // (count * block)) * block
        return [slice(a, min(a + size, length)) for a in range(0, length, size)] if length else []

    def scratch(self, name: str, *shape: int) -> Tensor:
        """A contiguous tensor with anything in it, in memory that the next call with this name uses again.

        Kept between calls on a CPU, whose allocator would give it back to the system and fault every page in again.
        """
        view = self.kept.get((name, self.dtype, shape))
        return self.allocate(name, shape) if view is None else view

    def allocate(self, name: str, shape: tuple[int, ...]) -> Tensor:
        size, kept = math.prod(shape), self.kept
        if len(kept) > 1024:  # views of every length ever seen
            kept.clear()
        memory = kept.get((name, self.dtype))
        if memory is None or memory.numel() < size:
            with torch.inference_mode(False):
                memory = self.like.new_empty(size)
            if size > 2 * TILE:  # too much to hold on to
                return memory.view(shape)
            for view in [key for key in kept if key[:2] == (name, self.dtype)]:
                del kept[view]
            kept[name, self.dtype] = memory
        return kept.setdefault((name, self.dtype, shape), memory[:size].view(shape))

    def triangle(self, size: int, diagonal: int = 0) -> Tensor:
        """Ones on and below a diagonal."""
        key = (size, self.dtype, diagonal)
        if key not in self.kept:
            with torch.inference_mode(False):
                self.kept[key] = self.like.new_ones(size, size).tril_(diagonal)
        return self.kept[key]

    def padded(self, at: slice) -> int:
        return -(-(at.stop - at.start) // self.plan.block_size) * self.plan.block_size

    def zero_padding(self, x: Tensor, at: slice) -> None:
        if x.shape[1] > at.stop - at.start:
            x[:, at.stop - at.start :] = 0

    def heads_apart(self, x: Tensor, at: slice) -> Tensor:
        """(G, L, ·) -> (B, H, real rows, ·), a view"""
        x, real = x.view(self.batch, self.heads, x.shape[1], x.shape[2]), at.stop - at.start
        return x if x.shape[2] == real else x[:, :, :real]

    def load(self, name: str, x: Tensor, at: slice) -> Tensor:
        """x[:, :, at] -> (G, L, D), zero in the padding rows."""
        buffer = self.scratch(name, self.groups, self.padded(at), x.shape[-1])
        self.heads_apart(buffer, at).copy_(x[:, :, at])
        self.zero_padding(buffer, at)
        return buffer

    def blocks(self, x: Tensor) -> Tensor:
        """(G, L, ·) -> (G·L/C, C, ·)"""
        return x.view(-1, self.plan.block_size, x.shape[-1])

    def product(self, name: str, a: Tensor, b: Tensor, lasting: bool = False) -> Tensor:
        shape = (a.shape[0], a.shape[1], b.shape[2])
        return torch.bmm(a, b, out=self.like.new_empty(shape) if lasting else self.scratch(name, *shape))

    def values(self, v: Tensor, at: slice) -> Tensor:
        values = self.load("values", v, at)
        if self.weight is not None:  # masked values may hold anything, NaN too, which weight 0 alone would not stop
            weight = self.weight[..., at].flatten(0, 1).unsqueeze(-1)
            values[:, : at.stop - at.start].masked_fill_(weight == 0, 0)
        return values

    def features(self, name: str, x: Tensor, at: slice) -> Tensor:
        """The map's output (G, L, F) for a chunk; what stands in the padding rows is undefined."""
        x, shape = x[:, :, at], (self.groups, self.padded(at), self.plan.num_features)
        if self.plan.feature_map.ready_made and self.weight is None and x.is_contiguous() and x.shape[2] == shape[1]:
            return x.view(shape)  # it will only be read
        out = self.like.new_empty(shape) if self.plan.keep_features else self.scratch(name, *shape)
        spare = self.scratch("spare", *shape)
        self.plan.feature_map.write(x, self.heads_apart(out, at), self.heads_apart(spare, at))
        return out

    def keys(
        self, k: Tensor, at: slice, c: Tensor | None, top: Tensor | None = None
    ) -> tuple[_Features, Tensor | None]:
        """Features of a chunk's keys relative to the running maximum (c before it, `top` if known), and that."""
        mapped, real, slope, weight = self.features("keys", k, at), at.stop - at.start, None, None
        stabilised, floor = self.plan.feature_map.stabilised, self.plan.feature_map.floor
        if self.weight is not None:
            weight = self.weight[..., at].flatten(0, 1).unsqueeze(-1)
            mapped[:, :real].masked_fill_(weight == 0, -math.inf if stabilised else 0)
        if stabilised:
            if mapped.shape[1] > real:
                mapped[:, real:] = -math.inf
            if c is not None:
                c = torch.maximum(c, mapped.amax(1, keepdim=True)) if top is None else top
                mapped.sub_(c)
            slope = mapped.exp2_()
        phi = mapped
        if floor:
            floor = floor if c is None else torch.exp2(math.log2(floor) - c)
            phi = torch.add(mapped, floor, out=self.floored("keys", mapped))
        self.zero_padding(phi, at)
        if weight is not None:
            weight = F.pad(weight, (0, 0, 0, mapped.shape[1] - real))
            phi = phi * weight
            slope = weight if slope is None else slope * weight
        return _Features(phi, mapped, slope, floor), c

    def queries(self, q: Tensor, at: slice, c: Tensor | None) -> _Features:
        """Features of a chunk's queries, to go with keys relative to the maximum c."""
        phi, feature_map = self.features("queries", q, at), self.plan.feature_map
        self.zero_padding(phi, at)
        if not feature_map.stabilised:
            return _Features(phi, phi, None)
        highest = phi.new_zeros(())
        if c is not None:
            phi.add_(c)
            highest = c.amax(-1, keepdim=True)  # (G, 1, 1)
        top = phi.new_zeros(()) if not self.plan.normalise else phi.amax(-1, keepdim=True)
        if feature_map.floor and self.plan.normalise:
            top = torch.maximum(top, highest + math.log2(feature_map.floor))
        if self.plan.normalise:  # a factor per row cancels in the ratio; this one keeps it in range
            phi.sub_(top)
        slope, column = phi.exp2_(), 0.0
        if feature_map.floor:  # ε 2^{c − top}, as the product of a column and a row
            column, out = torch.exp2(highest + math.log2(feature_map.floor) - top), self.floored("queries", slope)
            if c is None:
                phi = torch.add(slope, column, out=out)
            else:
                phi = torch.addcmul(slope, column, torch.exp2(c - highest), out=out)
        return _Features(phi, slope, slope, column)

    def floored(self, name: str, slope: Tensor) -> Tensor:
        """Where φ = slope + floor is written: in its place, if no backward pass will ask for the slope."""
        return self.scratch(f"{name} + floor", *slope.shape) if self.plan.keep else slope

    def restored(self, name: str, features: _Features, at: slice) -> _Features:
        """Features that were kept: all but φ, which stood in scratch memory, where it had a floor of its own."""
        if not self.plan.feature_map.floor:
            return features
        phi = torch.add(features.slope, features.floor, out=self.floored(name, features.slope))
        self.zero_padding(phi, at)
        return features._replace(phi=phi)

    def pull_back(self, grad: Tensor, features: _Features, x: Tensor, target: Tensor, at: slice) -> None:
        """dL/dφ -> dL/dx"""
        if features.slope is not None:
            grad.mul_(features.slope)
        grad, mapped = self.heads_apart(grad, at), self.heads_apart(features.mapped, at)
        self.plan.feature_map.vjp(x[:, :, at], mapped, grad, target[:, :, at])

    def write(self, readout: Tensor, mass: Tensor | None, out: Tensor, den: Tensor, at: slice) -> None:
        """Readout (G, L, Dv) over mass (G, L, 1)."""
        readout = self.heads_apart(readout, at)
        if mass is None:
            out[:, :, at] = readout
            return
        denominator = torch.add(self.heads_apart(mass, at), self.plan.eps, out=den[:, :, at])
        denominator.masked_fill_(denominator == 0, math.inf)  # a query that sees no key outputs 0
        torch.div(readout, denominator, out=out[:, :, at])

    def cotangents(self, grad_out: Tensor, out: Tensor, den: Tensor, at: slice) -> tuple[Tensor, Tensor | None]:
        """Through o = n/m: dL/dn = g/m (G, L, Dv) and dL/dm = −(g/m)·o (G, L, 1)."""
        if not self.plan.normalise:
            return self.load("cotangent", grad_out, at), None
        shape = self.groups, self.padded(at), self.value_dim
        g, h = self.scratch("cotangent", *shape), self.scratch("mass cotangent", *shape[:2], 1)
        self.zero_padding(g, at)
        self.zero_padding(h, at)
        numerator = torch.div(grad_out[:, :, at], den[:, :, at], out=self.heads_apart(g, at))
        product = torch.mul(numerator, out[:, :, at], out=self.heads_apart(self.scratch("spare", *shape), at))
        torch.sum(product, -1, keepdim=True, out=self.heads_apart(h, at)).neg_()
        return g, h

    def accumulate(
        self, name: str, S: Tensor, updates: Tensor, backwards: bool = False, lasting: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The state (G·J, a, b) that each block meets, and the one after the last: a triangular matmul over blocks."""
        shape, count = updates.shape, updates.shape[0] // self.groups
        if count == 1:
            return S, S + updates
        updates = updates.view(self.groups, count, -1)  # (G, J, a·b)
        order = self.triangle(count, -1)
        order = (order.T if backwards else order).expand(self.groups, count, count)
        met = torch.empty_like(updates) if lasting else self.scratch(name, *updates.shape)
        torch.baddbmm(S.reshape(self.groups, 1, -1), order, updates, out=met)
        last = 0 if backwards else -1
        return met.view(shape), torch.add(met[:, last], updates[:, last]).view_as(S)


class _State(NamedTuple):
    S: Tensor  # (G, F, Dv)
    z: Tensor | None  # (G, 1, F), for normalised kernels
    c: Tensor | None = None  # (G, 1, F), for stabilised features

    def relative_to(self, c: Tensor | None, top: Tensor | None) -> "_State":
        """Moved from the maximum c to another."""
        if c is None:
            return _State(self.S, self.z)
        factor = torch.exp2(c - top)
        return _State(self.S * factor.transpose(1, 2), None if self.z is None else self.z * factor, top)


def _block_sums(tile: _Tile, keys: Tensor) -> Tensor:
    """(G·J, C, F) -> (G·J, 1, F)"""
    return torch.sum(keys, 1, keepdim=True, out=tile.scratch("sums", keys.shape[0], 1, keys.shape[2]))


class _Trail(NamedTuple):
    """What the forward sweep leaves to the backward sweep."""

    between: list[_State]  # chunks
    scores: list[Tensor]
    states: list[Tensor]
    features: list[tuple[_Features, _Features] | _Features | None]  # of queries and keys; bidirectional: of keys


def _causal(tile: _Tile, q, k, v, state: _State, out, den) -> _Trail:
    """Per block: n = φ_q S + tril(φ_q φ_kᵀ) v, then S += φ_kᵀ v."""
    trail, mask, mass, plan = _Trail([state], [], [], []), tile.triangle(tile.plan.block_size), None, tile.plan
    for at in tile.chunks:
        key_features, top = tile.keys(k, at, state.c)
        query_features = tile.queries(q, at, top)
        S, z, c = state.relative_to(state.c, top)
        queries, keys, values = map(tile.blocks, (query_features.phi, key_features.phi, tile.values(v, at)))
        updates = tile.product("updates", keys.transpose(1, 2), values)
        states, S = tile.accumulate("states", S, updates, lasting=plan.keep)
        scores = tile.product("scores", queries, keys.transpose(1, 2), lasting=plan.keep).mul_(mask)
        readout = tile.product("readout", queries, states).baddbmm_(scores, values)
        if z is not None:
            sums, z = tile.accumulate("met sums", z, _block_sums(tile, keys))
            mass = torch.bmm(queries, sums.transpose(1, 2)).add_(scores.sum(-1, keepdim=True))
            mass = mass.view(tile.groups, -1, 1)
        tile.write(readout.view(tile.groups, -1, tile.value_dim), mass, out, den, at)
        state = _State(S, z, c)
        trail.between.append(state)
        if plan.keep:
            trail.scores.append(scores)
            trail.states.append(states)
            trail.features.append((query_features, key_features) if plan.keep_features else None)
    return trail


def _causal_backward(tile: _Tile, q, k, v, trail: _Trail, grad: _State, out, den, grad_out, dq, dk, dv) -> _State:
    """One reverse sweep; `grad` is dL/dstate after the chunk. Returns that before the first."""
    R, r = grad.S, grad.z
    size = tile.plan.block_size
    mask = tile.triangle(size)
    for i in reversed(range(len(tile.chunks))):
        at, before, top = tile.chunks[i], trail.between[i], trail.between[i + 1].c
        scores, states = trail.scores[i], trail.states[i]
        if kept := trail.features[i]:
            query_features, key_features = tile.restored("queries", kept[0], at), tile.restored("keys", kept[1], at)
        else:
            query_features, key_features = tile.queries(q, at, top), tile.keys(k, at, before.c, top)[0]
        keys, queries, values = map(tile.blocks, (key_features.phi, query_features.phi, tile.values(v, at)))
        g, h = tile.cotangents(grad_out, out, den, at)
        g = tile.blocks(g)
        _, z, _ = before.relative_to(before.c, top)
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


def _bidirectional(tile: _Tile, q, k, v, state: _State, out, den) -> _Trail:
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
    return _Trail([start, state], [], [], kept)


def _bidirectional_backward(tile: _Tile, q, k, v, trail: _Trail, grad: _State, out, den, grad_out, dq, dk, dv):
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
        rows = max(1, TILE // (heads * plan.chunk_size * max(plan.num_features, width)))
        ctx.tiles = [slice(a, a + rows) for a in range(0, batch, rows)]
        S = S.clone() if plan.keep else S  # the backward pass reads it; the caller may step it in place before that
        for b in ctx.tiles:
            tile = _Tile(v[b], None if weight is None else weight[b], plan)
            state = _split(S[b], width, None if c is None else c[b])
            trail = (_causal if causal else _bidirectional)(tile, q[b], k[b], v[b], state, out[b], den[b])
            _join(trail.between[-1], S_after[b])
            if c is not None:
                c_after[b] = trail.between[-1].c.view_as(c[b])
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
                tile = _Tile(v[b], None if weight is None else weight[b], ctx.plan)
                arrays = (x[b] for x in (out, den, grad_out, dq, dk, dv))
                grad = sweep(tile, q[b], k[b], v[b], trail, _split(grad_S[b], v.shape[-1]), *arrays)
                _join(grad, dS[b])
        if weight is not None:
            dv.masked_fill_((weight == 0).unsqueeze(-1), 0)
        return dq, dk, dv, dS, None, None, None, None


def _split(S: Tensor, width: int, c: Tensor | None = None) -> _State:
    """(B, H, F, Dv + 1) and (B, H, F) -> S, z and c of the groups"""
    S = S.flatten(0, 1)
    z = S[..., width].unsqueeze(1) if S.shape[-1] > width else None
    return _State(S[..., :width], z, None if c is None else c.flatten(0, 1).unsqueeze(1))


def _join(state: _State, target: Tensor) -> None:
    """S and z of the groups -> (B, H, F, Dv + 1)"""
    width = state.S.shape[-1]
    target[..., :width] = state.S.view(*target.shape[:3], width)
    if state.z is not None:
        target[..., width] = state.z.view(target.shape[:3])
