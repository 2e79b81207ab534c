"""The shared engine of all linear mechanisms.

Kernel attention with non-negative features φ (Katharopoulos et al. 2020, "Transformers are RNNs"):

    o_i = φ(q_i)·S_i / φ(q_i)·z_i,    S_i = Σ_{j∈A(i)} φ(k_j) v_jᵀ,    z_i = Σ_{j∈A(i)} φ(k_j)

with A(i) = every key (bidirectional) or j ≤ i (causal): O(N·F·D). `kernel_attention` streams over chunks
(`streaming.py`); `kernel_step` is the recurrent form for one token. Both take and return the same state, so any split
of a sequence into calls gives the same result. A column of ones beside v makes z the last column of S.

Stabilised feature maps return log₂ φ. Where that is unbounded, a running maximum c per feature keeps 2^{log₂ φ − c} in
range: the state holds S·2^{−c} and c. It cancels exactly, so it is never differentiated, and no future key moves a
past row.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Attention, State, allowed_keys, zero_masked
from .feature_map import FeatureMap
from .streaming import StreamedKernelAttention
from .tile import TILE, Plan

# "No key yet" in a running maximum: finite, so that the difference of two of them is 0 and not NaN.
NO_KEY = -1e30

# Two exponents may differ by this much within a chunk before e^{difference} leaves float32's range.
SAFE_RANGE = 60.0


# Up to so many features per channel are kept for the backward pass: cheaper to read than to make again. With four, as
# a language model may have, that would spare a few per cent of a step's time, and take a seventh more memory.
KEPT_FEATURES = 2

# torch.compile can't trace writes into scratch memory: the engine runs as it is, between compiled parts.
_run = torch.compiler.disable(StreamedKernelAttention.apply)


def kernel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap | None = None,
    *,
    causal: bool = False,
    state: State | None = None,
    key_weight: Tensor | None = None,
    normalise: bool = True,
    eps: float = 0.0,
    chunk_size: int | None = None,
    block_size: int = 64,
) -> tuple[Tensor, State]:
    """q, k (B, H, N, D), v (B, H, N, Dv) -> output (B, H, N, Dv) and the state after the last token.

    Bidirectional, there may be more or fewer queries than keys; none at all only takes the keys into the state.

    `key_weight` (B, N) or (B, H, N) multiplies φ_k and is not differentiated: 0 removes a key (padding), 1/(1−p) keeps
    one under dropout. `normalise=False` returns the numerator. float32 throughout; float64 for float64.
    """
    feature_map = feature_map or FeatureMap()
    if torch.compiler.is_compiling() and not causal and state is None:
        return _traceable(q, k, v, feature_map, key_weight, normalise, eps)
    batch, heads, length, head_dim = k.shape
    dtype, features = v.dtype, feature_map.num_features(head_dim)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if state is None:
        state = initial_state(batch, heads, features, v.shape[-1], feature_map, normalise, v.device, wide)
    q, k, v, S = q.to(wide), k.to(wide), v.to(wide), state["S"].to(wide)
    c = state["c"].to(wide) if feature_map.needs_maximum else None
    if key_weight is not None:
        key_weight = key_weight if key_weight.dim() == 3 else key_weight.unsqueeze(1)
        key_weight = key_weight.to(wide).expand(batch, heads, length)
    chunk_size = min(
        chunk_size or max(block_size, min(1024, TILE // (heads * max(features, v.shape[-1])))), max(length, q.shape[2])
    )
    block_size = min(block_size, chunk_size) if causal else 1
    few = features <= head_dim * KEPT_FEATURES
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, S))
    plan = Plan(
        feature_map=feature_map,
        num_features=features,
        chunk_size=chunk_size // block_size * block_size,
        block_size=block_size,
        normalise=normalise,
        eps=eps,
        keep=keep,
        keep_features=keep and few and not (feature_map.stabilised and (c is not None or key_weight is not None)),
    )
    with torch.autocast(v.device.type, enabled=False):
        out, S, c = _run(q, k, v, S, c, key_weight, plan, causal)
    return out.to(dtype), {"S": S} if c is None else {"S": S, "c": c}


def _traceable(q, k, v, feature_map: FeatureMap, key_weight, normalise: bool, eps: float) -> tuple[Tensor, State]:
    """Bidirectional kernel attention as two matmuls, for torch.export and torch.compile; the state is not offered."""
    dtype, wide = v.dtype, torch.promote_types(v.dtype, torch.float32)
    with torch.autocast(v.device.type, enabled=False):
        phi_q, phi_k, v = feature_map(q.to(wide)), feature_map(k.to(wide)), v.to(wide)
        if feature_map.stabilised:
            log_floor = math.log2(feature_map.floor) if feature_map.floor else NO_KEY
            c = phi_k.detach().amax(2, keepdim=True).clamp_min(log_floor)  # (B, H, 1, F)
            top = torch.maximum(phi_q, phi_q.new_tensor(log_floor)).add(c).amax(-1, keepdim=True) if normalise else 0
            phi_k = (phi_k - c).exp2() + (log_floor - c).exp2()
            phi_q = (phi_q + c - top).exp2() + (log_floor + c - top).exp2()
        if key_weight is not None:
            key_weight = key_weight if key_weight.dim() == 3 else key_weight.unsqueeze(1)
            phi_k = phi_k * key_weight.unsqueeze(-1).to(wide)
        output = phi_q @ (phi_k.mT @ v)  # (B, H, N, Dv)
        if normalise:
            total = phi_q @ phi_k.sum(2).unsqueeze(-1) + eps
            output = output / total.masked_fill(total == 0, math.inf)
    return output.to(dtype), {}


def kernel_step(
    q: Tensor, k: Tensor, v: Tensor, state: State, feature_map: FeatureMap | None = None, *, normalise=True, eps=0.0
) -> tuple[Tensor, State]:
    """One token, q, k, v (B, H, 1, D): S += φ_k [v, 1]ᵀ, o = φ_q S. In place where no gradient is asked."""
    return kernel_step_stacked(torch.stack([q, k]), v, state, feature_map, normalise=normalise, eps=eps)


def kernel_step_stacked(
    qk: Tensor, v: Tensor, state: State, feature_map: FeatureMap | None = None, *, normalise=True, eps=0.0
) -> tuple[Tensor, State]:
    """The same for q and k in one tensor (2, B, H, 1, D), so that one call of the map makes the features of both."""
    feature_map = feature_map or FeatureMap()
    if not state["S"].is_contiguous():
        state = {name: x.contiguous() for name, x in state.items()}
    S, c = state["S"], state.get("c")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (qk, v, S)):
        return kernel_attention(
            *qk, v, feature_map, causal=True, state=state, normalise=normalise, eps=eps, chunk_size=1
        )
    groups, dtype = S.view(-1, *S.shape[2:]), v.dtype  # (G, F, Dv + 1), G = B·H
    values = v.reshape(len(groups), 1, -1)
    if dtype != S.dtype:
        qk, values = qk.to(S.dtype), values.to(S.dtype)
    phi = feature_map(qk.reshape(-1, qk.shape[-1]))
    phi_q, phi_k = phi.chunk(2)  # (G, F)
    if c is not None:
        phi_q, phi_k = _stabilise(phi_q, phi_k, S, c, feature_map.floor, normalise)
    elif feature_map.stabilised:
        phi.exp2_().add_(feature_map.floor)
        if normalise:  # a factor per query cancels in the ratio; this one keeps it in range
            phi_q.div_(phi_q.amax(-1, keepdim=True))
    if normalise:
        values = torch.cat([values, values.new_ones(len(groups), 1, 1)], -1)
    groups.addcmul_(phi_k.unsqueeze(-1), values)
    output = torch.bmm(phi_q.unsqueeze(1), groups)  # (G, 1, Dv + 1)
    if normalise:
        output, denominator = output.split([v.shape[-1], 1], -1)
        if eps or not feature_map.floor:
            denominator = denominator + eps
            denominator.masked_fill_(denominator == 0, math.inf)
        output = output / denominator
    return output.view(v.shape).to(dtype), state


def _stabilise(
    phi_q: Tensor, phi_k: Tensor, S: Tensor, c: Tensor, floor: float, normalise: bool
) -> tuple[Tensor, Tensor]:
    """φ_q and φ_k (G, F) from their logarithms, relative to the running maximum c, which moves with S in place."""
    before, c = c.clone(), c.view_as(phi_k)
    torch.maximum(c, phi_k, out=c)
    S.mul_(torch.exp2(before - c.view_as(before)).unsqueeze(-1))
    phi_q, phi_k, top = phi_q + c, phi_k - c, 0.0
    if normalise:
        top = phi_q.amax(-1, keepdim=True)
    if not floor:
        return (phi_q - top).exp2_(), phi_k.exp2_()
    floor_q, floor_k = c + math.log2(floor), math.log2(floor) - c
    top = torch.maximum(top, floor_q.amax(-1, keepdim=True)) if normalise else top
    return (phi_q - top).exp2_().add_((floor_q - top).exp2_()), phi_k.exp2_().add_(floor_k.exp2_())


def initial_state(
    batch_size: int,
    num_heads: int,
    num_features: int,
    value_dim: int,
    feature_map: FeatureMap | None = None,
    normalise: bool = True,
    device=None,
    dtype: torch.dtype = torch.float32,
) -> State:
    """No token seen: S (B, H, F, Dv + 1) with z as its last column, and c (B, H, F) where a maximum is needed."""
    shape = (batch_size, num_heads, num_features)
    state = {"S": torch.zeros(*shape, value_dim + normalise, device=device, dtype=dtype)}
    if feature_map is not None and feature_map.needs_maximum:
        empty = math.log2(feature_map.floor) if feature_map.floor else NO_KEY
        state["c"] = torch.full(shape, empty, device=device, dtype=dtype)
    return state


def safe_chunk_size(logits: Tensor, before: Tensor, chunk_size: int) -> int:
    """The largest chunk in which no running maximum rises by more than SAFE_RANGE; a chunk of one token is exact."""
    top = torch.maximum(logits.detach().cummax(2).values, before.detach().unsqueeze(2))
    chunk_size = min(chunk_size, logits.shape[2])
    while chunk_size > 1:
        padded = F.pad(top, (0, 0, 0, -top.shape[2] % chunk_size), value=NO_KEY)
        chunks = padded.unflatten(2, (-1, chunk_size))
        lowest = chunks.masked_fill(chunks < NO_KEY / 2, torch.inf).amin(3)
        if (chunks.amax(3) - lowest).max() <= SAFE_RANGE:
            return chunk_size
        chunk_size //= 2
    return 1


class KernelAttention(Attention):
    """Base of the linear mechanisms: says which features; the engine does the rest.

    A subclass sets `feature_map`, or computes features in `prepare` (then the default map takes them as they are), and
    states φ literally in `literal_features`. `prepare` may carry tensors of its own in the state.

    Args:
        chunk_size: tokens the engine works on at a time; by default what fits the cache. The result does not depend
            on it.
    """

    supports_causal = True
    supports_recurrent = True
    cost = "NFD"

    normalise = True
    eps = 0.0

    def __init__(self, hidden_size: int, num_heads: int, *, chunk_size: int | None = None, **common):
        super().__init__(hidden_size, num_heads, **common)
        if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
            raise ValueError(f"chunk_size={chunk_size!r} must be a positive integer, or None to choose it.")
        self.chunk_size, self.num_features, self.feature_map = chunk_size, self.head_dim, FeatureMap()

    def literal_features(self, q, k, key_mask, position_ids) -> tuple[Tensor, Tensor]:
        """φ(q), φ(k), each (B, H, N, F), by the formula."""
        raise NotImplementedError

    def prepare(self, q, k, key_mask, position_ids, state=None) -> tuple[Tensor, Tensor, State]:
        """What the feature map is applied to, and the mechanism's own part of the state after these tokens."""
        return q, k, {}

    def finish(self, output: Tensor, key_mask, state=None) -> Tensor:
        """After the engine, for kernels that are not normalised by their row sum."""
        return output

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        q, k, _ = self.prepare(q, k, key_mask, position_ids)
        output, _ = self.run(q, k, v, key_mask)
        return self.finish(output, key_mask)

    def extend(self, q, k, v, state, key_mask=None):
        q, k, own = self.prepare(q, k, key_mask, None, state)
        output, after = self.run(q, k, v, key_mask, state)
        return self.finish(output, key_mask, state), {**after, **own}

    def absorb(self, k, v, state, key_mask=None):
        if self.uses_positions:  # its features depend on what `extend` alone keeps count of
            return super().absorb(k, v, state, key_mask)
        return self.run(no_query(k), k, v, key_mask, state, causal=False)[1]

    def cross(self, q, k, v, key_mask=None):
        if self.uses_positions:
            return super().cross(q, k, v, key_mask)
        return self.run(q, k, v, key_mask, causal=False)[0]

    def step(self, q, k, v, state):
        if q.dim() == 3:
            output, state = self.step(q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2), state)
            return output.squeeze(2), state
        q, k, own = self.prepare(q, k, None, None, state)
        output, after = kernel_step(q, k, v, state, self.feature_map, normalise=self.normalise, eps=self.eps)
        return self.finish(output, None, state), {**after, **own}

    def step_stacked(self, qk, v, state):
        if self.uses_positions:
            return super().step_stacked(qk, v, state)
        return kernel_step_stacked(qk, v, state, self.feature_map, normalise=self.normalise, eps=self.eps)

    def run(self, q, k, v, key_mask, state=None, causal=None):
        causal, weight = self.causal if causal is None else causal, key_mask
        if self.training and self.dropout:  # there is no N×N matrix to drop from: whole keys go
            keep = F.dropout(torch.ones(k.shape[:3], device=k.device), self.dropout)
            weight = keep if key_mask is None else keep * key_mask.unsqueeze(1)
        return kernel_attention(
            q,
            k,
            v,
            self.feature_map,
            causal=causal,
            state=state,
            key_weight=weight,
            normalise=self.normalise,
            eps=self.eps,
            chunk_size=self.exact_chunk_size(k, state) if causal else self.chunk_size,
        )

    def exact_chunk_size(self, k, state=None) -> int | None:
        """Features of unbounded range (see `safe_chunk_size`) need shorter chunks at times."""
        return self.chunk_size

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        phi_q, phi_k = self.literal_features(q, zero_masked(k, key_mask), key_mask, position_ids)
        scores = (phi_q if rows is None else phi_q[:, :, rows]) @ phi_k.mT
        allowed = allowed_keys(k.shape[2], self.causal, key_mask, rows, k.device)
        return row_normalise(scores, allowed, self.eps)

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        return initial_state(
            batch_size,
            self.num_heads,
            self.num_features,
            self.head_dim,
            self.feature_map,
            self.normalise,
            device,
            dtype,
        )


def no_query(k: Tensor) -> Tensor:
    """(B, H, 0, D); detached, or the backward pass would add zeros to k's gradient"""
    return k.detach()[:, :, :0]


def row_normalise(scores: Tensor, allowed: Tensor | None, eps: float = 0.0) -> Tensor:
    """Scores (B, H, S, N) over the sum of what each row is allowed to see; 0 where that is 0."""
    if allowed is not None:
        scores = scores.masked_fill(~allowed, 0)
    total = scores.sum(-1, keepdim=True) + eps
    return scores / total.masked_fill(total == 0, math.inf)
