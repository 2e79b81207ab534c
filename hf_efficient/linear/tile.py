"""A part of linear attention as it is worked on: some rows of the batch, a chunk of tokens at a time.

What makes it fast on a CPU: a chunk is worked on in scratch memory that stays in cache and is kept between calls
(`scratch.py`), and features are made there, so that they never exist all at once.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .features import FeatureMap
from .scratch import TILE, scratch_on
from .stabilise import stabilise_keys, stabilise_queries


class Plan(NamedTuple):
    feature_map: FeatureMap
    num_features: int
    chunk_size: int
    block_size: int
    normalise: bool
    eps: float
    keep: bool  # what the backward pass needs
    keep_features: bool  # where they are few: cheaper to read than to make again


class Features(NamedTuple):
    phi: Tensor  # (G, L, F)
    mapped: Tensor  # what the map wrote, or for stabilised maps its exponential
    slope: Tensor | None  # dφ/d(what the map wrote), None = 1
    floor: Tensor | float = 0.0  # what φ has above the slope, where that is all the difference


class Sums(NamedTuple):
    """What the queries read: the state of G = B·H groups."""

    S: Tensor | None  # (G, F, Dv); None where it is not needed any more
    z: Tensor | None  # (G, 1, F), for normalised kernels
    c: Tensor | None = None  # (G, 1, F), for stabilised features

    def relative_to(self, c: Tensor | None, top: Tensor | None) -> "Sums":
        """Moved from the maximum c to another."""
        if c is None:
            return Sums(self.S, self.z)
        factor = torch.exp2(c - top)
        S = None if self.S is None else self.S * factor.transpose(1, 2)
        return Sums(S, None if self.z is None else self.z * factor, top)


class Tile:
    """Some rows of the batch: G = B·H groups, worked on chunk by chunk, L rows each (padded to whole blocks)."""

    def __init__(self, v: Tensor, weight: Tensor | None, plan: Plan):
        self.plan, self.weight, self.like = plan, weight, v
        self.batch, self.heads, length, self.value_dim = v.shape
        self.groups = self.batch * self.heads
        self.chunks = self.cut(length)
        self.memory = scratch_on(v.device)

    def cut(self, length: int) -> list[slice]:
        """Into chunks of whole blocks, about equally long: a short last one would cost as many calls as a long one."""
        count, block = max(1, -(-length // self.plan.chunk_size)), self.plan.block_size
        size = -(-length // (count * block)) * block
        return [slice(a, min(a + size, length)) for a in range(0, length, size)] if length else []

    def scratch(self, name: str, *shape: int) -> Tensor:
        """A contiguous tensor with anything in it, in memory that the next call with this name uses again."""
        return self.memory.take(name, shape, self.like)

    def triangle(self, size: int) -> Tensor:
        """Ones on and below the diagonal."""
        return self.memory.triangle(size, self.like)

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

    def values(self, v: Tensor, at: slice, ones: bool = False, lasting: bool = False) -> Tensor:
        """v[:, :, at] -> (G, L, Dv), or with a column of ones beside it (G, L, Dv + 1)"""
        shape = self.groups, self.padded(at), self.value_dim + ones
        values = self.like.new_empty(shape) if lasting else self.scratch("values", *shape)
        self.heads_apart(values, at)[..., : self.value_dim].copy_(v[:, :, at])
        self.zero_padding(values, at)
        if ones:
            values[..., -1] = 1
        if self.weight is not None:  # masked values may hold anything, NaN too, which weight 0 alone would not stop
            weight = self.weight[..., at].flatten(0, 1).unsqueeze(-1)
            values[:, : at.stop - at.start].masked_fill_(weight == 0, 0)
        return values

    def split(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """What belongs to the values, (.., Dv), and what belongs to the ones, (.., 1), if they are there"""
        return (x[..., :-1], x[..., -1:]) if self.plan.normalise else (x, None)

    def features(self, name: str, x: Tensor, at: slice) -> Tensor:
        """The map's output (G, L, F) for a chunk; what stands in the padding rows is undefined."""
        if (there := self.in_place(x, at)) is not None:
            return there  # it will only be read
        shape = self.groups, self.padded(at), self.plan.num_features
        out = self.like.new_empty(shape) if self.plan.keep_features else self.scratch(name, *shape)
        spare = self.scratch("spare", *shape)
        self.plan.feature_map.write(x[:, :, at], self.heads_apart(out, at), self.heads_apart(spare, at))
        return out

    def in_place(self, x: Tensor, at: slice) -> Tensor | None:
        """x[:, :, at] as (G, L, F) where features are ready-made and stand in this order, else None"""
        if not self.plan.feature_map.ready_made or self.weight is not None:
            return None
        x, shape = x[:, :, at], (self.groups, self.padded(at), self.plan.num_features)
        return x.view(shape) if x.is_contiguous() and x.shape[2] == shape[1] else None

    def keys(
        self, k: Tensor, at: slice, c: Tensor | None, top: Tensor | None = None
    ) -> tuple[Features, Tensor | None]:
        """Features of a chunk's keys relative to the running maximum (c before it, `top` if known), and that."""
        mapped, real, slope, weight = self.features("keys", k, at), at.stop - at.start, None, None
        stabilised, floor = self.plan.feature_map.stabilised, self.plan.feature_map.floor
        if self.weight is not None:
            weight = self.weight[..., at].flatten(0, 1).unsqueeze(-1)
            mapped[:, :real].masked_fill_(weight == 0, -math.inf if stabilised else 0)
        phi = mapped
        if stabilised:
            if mapped.shape[1] > real:
                mapped[:, real:] = -math.inf
            if c is not None:
                c = torch.maximum(c, mapped.amax(1, keepdim=True)) if top is None else top
            out = self.floored("keys", mapped) if floor else None
            phi, slope, floor = stabilise_keys(mapped, c, floor, out)
        self.zero_padding(phi, at)
        if weight is not None:
            weight = F.pad(weight, (0, 0, 0, mapped.shape[1] - real))
            phi = phi * weight
            slope = weight if slope is None else slope * weight
        return Features(phi, mapped, slope, floor), c

    def queries(self, q: Tensor, at: slice, c: Tensor | None) -> Features:
        """Features of a chunk's queries, to go with keys relative to the maximum c."""
        phi, feature_map = self.features("queries", q, at), self.plan.feature_map
        self.zero_padding(phi, at)
        if not feature_map.stabilised:
            return Features(phi, phi, None)
        out = self.floored("queries", phi) if feature_map.floor else None
        phi, slope, column = stabilise_queries(phi, c, feature_map.floor, self.plan.normalise, out)
        return Features(phi, slope, slope, column)

    def floored(self, name: str, slope: Tensor) -> Tensor:
        """Where φ = slope + floor is written: in its place, if no backward pass will ask for the slope."""
        return self.scratch(f"{name} + floor", *slope.shape) if self.plan.keep else slope

    def restored(self, name: str, features: Features, at: slice) -> Features:
        """Features that were kept: all but φ, which stood in scratch memory, where it had a floor of its own."""
        if not self.plan.feature_map.floor:
            return features
        phi = torch.add(features.slope, features.floor, out=self.floored(name, features.slope))
        self.zero_padding(phi, at)
        return features._replace(phi=phi)

    def pull_back(self, grad: Tensor, features: Features, x: Tensor, target: Tensor, at: slice) -> None:
        """dL/dφ -> dL/dx"""
        if features.slope is not None:
            grad.mul_(features.slope)
        grad, mapped = self.heads_apart(grad, at), self.heads_apart(features.mapped, at)
        self.plan.feature_map.vjp(x[:, :, at], mapped, grad, target[:, :, at])

    def pull_back_product(
        self, a: Tensor, b: Tensor, features: Features, x: Tensor, target: Tensor, at: slice
    ) -> None:
        """dL/dφ = a b -> dL/dx"""
        there = self.in_place(target, at)
        if there is None:
            self.pull_back(self.product("grad features", a, b), features, x, target, at)
        else:
            torch.bmm(a, b, out=there)

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
        self.divide(grad_out, out, den, at, g, h)
        return g, h

    def joint_cotangents(self, grad_out: Tensor, out: Tensor, den: Tensor, at: slice) -> Tensor:
        """Both beside one another, (G, L, Dv + 1)"""
        if not self.plan.normalise:
            return self.load("cotangent", grad_out, at)
        joint = self.scratch("cotangent", self.groups, self.padded(at), self.value_dim + 1)
        self.divide(grad_out, out, den, at, *self.split(joint))
        return joint

    def divide(self, grad_out: Tensor, out: Tensor, den: Tensor, at: slice, g: Tensor, h: Tensor) -> None:
        """Writes the cotangents to g and h."""
        numerator = torch.div(grad_out[:, :, at], den[:, :, at], out=self.heads_apart(g, at))
        product = torch.mul(numerator, out[:, :, at], out=self.heads_apart(self.scratch("spare", *g.shape), at))
        torch.sum(product, -1, keepdim=True, out=self.heads_apart(h, at)).neg_()

    def accumulate(
        self, name: str, S: Tensor, updates: Tensor, backwards: bool = False, lasting: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The state (G·J, a, b) that each block meets, and the one after the last."""
        shape, count = updates.shape, updates.shape[0] // self.groups
        if count == 1:
            return S, S + updates
        updates = updates.view(self.groups, count, -1)  # (G, J, a·b)
        met = torch.empty_like(updates) if lasting else self.scratch(name, *updates.shape)
        order = slice(None, None, -1) if backwards else slice(None)
        states, updates = met.unbind(1)[order], updates.unbind(1)[order]
        states[0].copy_(S.reshape(self.groups, -1))
        for before, update, after in zip(states, updates, states[1:], strict=False):
            torch.add(before, update, out=after)
        return met.view(shape), torch.add(states[-1], updates[-1]).view_as(S)


def tiles_of(batch: int, heads: int, width: int, plan: Plan) -> list[slice]:
    """The rows of the batch that are worked on together: as many as fill one scratch buffer, `width` wide at least."""
    rows = max(1, TILE // (heads * plan.chunk_size * max(plan.num_features, width)))
    return [slice(a, min(a + rows, batch)) for a in range(0, batch, rows)]
