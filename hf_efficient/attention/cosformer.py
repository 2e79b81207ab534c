"""cosFormer (Qin et al. 2022): ReLU features, re-weighted by the cosine of the distance.

    A_ij ∝ relu(q_i)·relu(k_j)·cos(π(i−j)/2M),    φ(x_i) = [relu(x_i) cos(πi/2M); relu(x_i) sin(πi/2M)],    F = 2D

with positions i from 1. The reference takes the padded length for M, so that padding and later tokens change earlier
outputs. Here M is constant when causal (`max_length`; a longer text would get negative weights and is an error) and
each sample's number of real tokens otherwise.
"""

import math

import torch

from ..linear.heads_first import turn_tokens
from ..linear.literal import row_normalise
from .base import check_positive
from .kernel_attention import KernelAttention
from .masking import allowed_keys, token_positions, zero_masked
from .registry import register_attention


@register_attention
class Cosformer(KernelAttention):
    """
    Args:
        max_length: M of the causal form, the longest text.
    """

    paper = "Qin 2022"
    cost = "2ND²"
    parameter_free = True
    exempt_from = ("permutation",)

    def __init__(self, hidden_size: int, num_heads: int, *, max_length: int = 4096, **common):
        super().__init__(hidden_size, num_heads, **common)
        check_positive("max_length", max_length)
        self.max_length = max_length
        self.num_features = 2 * self.head_dim

    def angles(self, x, key_mask, position_ids, start=None):
        """πi/2M of each token of x (B, H, N, D), in float32 at least: (B, 1, N, 1)."""
        batch, _, length, _ = x.shape
        i = token_positions(position_ids, key_mask, batch, length, x.device) + 1
        if start is not None:
            i = i + start.unsqueeze(-1)
        if self.causal:
            checked = i.device.type == "cpu" and not torch.compiler.is_compiling()  # elsewhere it would cost a sync
            if checked and int(i.max()) > self.max_length:
                raise ValueError(
                    f"position {int(i.max()) - 1} is beyond max_length={self.max_length} of the causal 'cosformer' "
                    "attention: build it with a larger max_length."
                )
            longest = self.max_length
        elif position_ids is not None:
            longest = i.amax(-1, keepdim=True)
        else:
            longest = i.new_full((batch, 1), length) if key_mask is None else key_mask.sum(-1, keepdim=True)
            longest = longest.clamp_min(1)
        i = i.to(torch.promote_types(x.dtype, torch.float32))
        return (math.pi / 2 * i / longest)[:, None, :, None]

    def prepare(self, q, k, key_mask, position_ids, state=None):
        angles = self.angles(q, key_mask, position_ids, state and state["length"])
        q, k = (turn_tokens(x.to(angles.dtype).relu(), angles) for x in (q, k))
        own = {}
        if state is not None:
            seen = q.shape[2] if key_mask is None else key_mask.sum(-1)
            own["length"] = state["length"] + seen
        return q, k, own

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        state = super().initial_state(batch_size, device, dtype)
        return {**state, "length": torch.zeros(batch_size, device=device, dtype=torch.long)}

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        angles = self.angles(q, key_mask, position_ids).to(q.dtype)
        own, q = (angles, q) if rows is None else (angles[:, :, rows], q[:, :, rows])
        scores = q.relu() @ zero_masked(k, key_mask).relu().mT * torch.cos(own - angles.mT)
        return row_normalise(scores, allowed_keys(k.shape[2], self.causal, key_mask, rows, k.device))
