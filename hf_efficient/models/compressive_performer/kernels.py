"""What a memory asks of attention beyond its contract, on heads (B, H, N, D) without positions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ...attention.base import Attention
from ...attention.kernel_attention import KernelAttention, no_query
from ...linear.recurrent import kernel_step_stacked
from ...linear.state import State
from .reconstruction import reconstruction_loss as loss_of_states


def absorb(attention: Attention, k: Tensor, v: Tensor, state: State, key_mask: Tensor | None = None) -> State:
    """The state after tokens that are only looked at. Mechanisms that can't (xcit) take the keys for the queries."""
    if attention.absorb is None:
        return attention.extend(k, k, v, state, key_mask=key_mask)[1]
    return attention.absorb(k, v, state, key_mask)


def cross(attention: Attention, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """Every query (B, H, N, D) against every key (B, H, M, D), whatever their order: (B, H, N, D)."""
    if isinstance(attention, KernelAttention) and not attention.prepares:
        return attention.run(q, k, v, key_mask, causal=False)[0]
    if attention.name in ("softmax", "local", "lsh"):  # without an order there is no window, nor the buckets of a hash
        k = F.normalize(k, dim=-1) if attention.name == "lsh" else k
        mask = None if key_mask is None else key_mask[:, None, None]
        return F.scaled_dot_product_attention(q, k, v, mask)
    state = attention.initial_state(q.shape[0], q.device, torch.promote_types(q.dtype, torch.float32))
    state = attention.absorb(k, v, state, key_mask)
    nobody = torch.zeros(q.shape[0], q.shape[2], device=q.device, dtype=torch.bool)
    blank = q.new_zeros(*q.shape[:3], k.shape[-1]), q.new_zeros(*q.shape[:3], v.shape[-1])
    return attention.extend(q, *blank, state, key_mask=nobody)[0]


def reconstruction_loss(
    attention: Attention, q: Tensor, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]
) -> Tensor:
    """The mean squared difference that it makes to queries whether they see (k, v) `before` or those `after`."""
    learning = any(x.requires_grad for x in (q, *before))  # what the short way knows no gradient of
    linear = isinstance(attention, KernelAttention) and attention.normalise and not attention.prepares
    if not linear or attention.feature_map.needs_maximum or learning:
        return F.mse_loss(cross(attention, q, *after), cross(attention, q, *before))
    states = [attention.run(no_query(k), k, v, None, causal=False)[1]["S"] for k, v in (before, after)]
    return loss_of_states(q, *states, attention.feature_map, attention.eps)


def step_stacked(attention: Attention, qk: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
    """`attention.step` for q and k as they come out of one projection: (2, B, H, 1, D)."""
    if isinstance(attention, KernelAttention) and not attention.prepares:
        return kernel_step_stacked(
            qk, v, state, attention.feature_map, normalise=attention.normalise, eps=attention.eps
        )
    return attention.step(*qk, v, state)
