"""Linear attention for many tokens at once, with non-negative features φ (Katharopoulos et al. 2020).

    o_i = φ(q_i)·S_i / φ(q_i)·z_i,    S_i = Σ_{j∈A(i)} φ(k_j) v_jᵀ,    z_i = Σ_{j∈A(i)} φ(k_j)

with A(i) = every key (bidirectional) or j ≤ i (causal): O(N·F·D). It takes and returns the same state as the recurrent
form, so any split of a sequence into calls gives the same result. A column of ones beside v makes z the last column
of S.

What makes it fast on a CPU: tokens are worked on in chunks that fit the cache (`tile.py`); features are remade in the
backward pass where they are many; inputs are read from, and results written to, the projections' (B, N, H, D) memory,
so heads are never copied apart.
"""

import math

import torch
from torch import Tensor

from .autocast import without_autocast
from .chunked_bidirectional import BidirectionalKernelAttention
from .chunked_causal import CausalKernelAttention
from .features import FeatureMap
from .scratch import TILE
from .stabilise import stabilise_keys, stabilise_queries
from .state import State, initial_state
from .tile import Plan

# Up to so many features per channel are kept for the backward pass: cheaper to read than to make again. With four, as
# a language model may have, that would spare a few per cent of a step's time, and take a seventh more memory.
KEPT_FEATURES = 2

# Of so few tokens, both ways, all features are kept: they take little memory.
KEPT_LENGTH = 256


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
    if state is None and (causal or feature_map.needs_maximum):
        state = initial_state(batch, heads, features, v.shape[-1], feature_map, normalise, v.device, wide)
    q, k, v = q.to(wide), k.to(wide), v.to(wide)
    S = None if state is None else state["S"].to(wide)
    c = state["c"].to(wide) if feature_map.needs_maximum else None
    if key_weight is not None:
        key_weight = key_weight if key_weight.dim() == 3 else key_weight.unsqueeze(1)
        key_weight = key_weight.to(wide).expand(batch, heads, length)
    chunk_size = min(
        chunk_size or max(block_size, min(1024, TILE // (heads * max(features, v.shape[-1])))), max(length, q.shape[2])
    )
    block_size = min(block_size, chunk_size) if causal else 1
    few = features <= head_dim * KEPT_FEATURES or (length <= KEPT_LENGTH and not causal)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, S))
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
    with without_autocast(v):
        out, S, c = (_causal if causal else _bidirectional)(q, k, v, S, c, key_weight, plan)
    return out.to(dtype), {"S": S} if c is None else {"S": S, "c": c}


def _traceable(q, k, v, feature_map: FeatureMap, key_weight, normalise: bool, eps: float) -> tuple[Tensor, State]:
    """Bidirectional kernel attention as two matmuls, for torch.export and torch.compile; the state is not offered."""
    dtype, wide = v.dtype, torch.promote_types(v.dtype, torch.float32)
    with without_autocast(v):
        phi_q, phi_k, v = feature_map(q.to(wide)), feature_map(k.to(wide)), v.to(wide)
        if feature_map.stabilised:
            c = phi_k.detach().amax(2, keepdim=True).clamp_min(feature_map.log2_floor)  # (B, H, 1, F)
            phi_q = stabilise_queries(phi_q, c, feature_map.floor, normalise).phi
            phi_k = stabilise_keys(phi_k, c, feature_map.floor).phi
        if key_weight is not None:
            key_weight = key_weight if key_weight.dim() == 3 else key_weight.unsqueeze(1)
            phi_k = phi_k * key_weight.unsqueeze(-1).to(wide)
        output = phi_q @ (phi_k.mT @ v)  # (B, H, N, Dv)
        if normalise:
            total = phi_q @ phi_k.sum(2).unsqueeze(-1) + eps
            output = output / total.masked_fill(total == 0, math.inf)
    return output.to(dtype), {}


# torch.compile can't trace writes into scratch memory: the engine runs as it is, between compiled parts.
_causal = torch.compiler.disable(CausalKernelAttention.apply)
_bidirectional = torch.compiler.disable(BidirectionalKernelAttention.apply)
