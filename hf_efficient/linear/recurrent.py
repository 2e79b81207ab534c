"""Linear attention for one token: S += φ(k) [v, 1]ᵀ, o = φ(q) S. In place where no gradient is asked."""

import math

import torch
from torch import Tensor

from .chunked import kernel_attention
from .features import FeatureMap
from .stabilise import stabilise_keys, stabilise_queries
from .state import State


def kernel_step(
    q: Tensor, k: Tensor, v: Tensor, state: State, feature_map: FeatureMap | None = None, *, normalise=True, eps=0.0
) -> tuple[Tensor, State]:
    """q, k, v (B, H, 1, D) -> output (B, H, 1, Dv) and the state after the token."""
    feature_map = feature_map or FeatureMap()
    if not state["S"].is_contiguous():
        state = {name: x.contiguous() for name, x in state.items()}
    S, c = state["S"], state.get("c")
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, S))
    if learns or torch.compiler.is_exporting():  # a graph has no state that it could write to
        return kernel_attention(
            q, k, v, feature_map, causal=True, state=state, normalise=normalise, eps=eps, chunk_size=1
        )
    groups, dtype = S.view(-1, *S.shape[2:]), v.dtype  # (G, F, Dv + 1), G = B·H
    values = v.reshape(len(groups), 1, -1)
    qk = torch.stack([q, k])  # one call of the map makes the features of both
    if dtype != S.dtype:
        qk, values = qk.to(S.dtype), values.to(S.dtype)
    phi = feature_map(qk.view(-1, qk.shape[-1]))
    phi_q, phi_k = phi.chunk(2)  # (G, F)
    if c is not None:
        phi_q, phi_k = _relative_to_maximum(phi_q, phi_k, groups, c, feature_map.floor, normalise)
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


def _relative_to_maximum(
    a_q: Tensor, a_k: Tensor, S: Tensor, c: Tensor, floor: float, normalise: bool
) -> tuple[Tensor, Tensor]:
    """φ_q and φ_k from their logarithms (G, F); the running maximum c moves in place, and S (G, F, ·) with it."""
    c = c.view_as(a_k)
    before = c.clone()
    torch.maximum(c, a_k, out=c)
    S.mul_(torch.exp2(before - c).unsqueeze(-1))
    return stabilise_queries(a_q, c, floor, normalise).phi, stabilise_keys(a_k, c, floor).phi
