"""Linear mechanisms: kernel attention by the engine in `hf_efficient/linear`, with features that a mechanism names."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..linear.chunked import kernel_attention
from ..linear.features import FeatureMap
from ..linear.literal import literal_weights
from ..linear.recurrent import kernel_step
from ..linear.stabilise import exact_chunk_size
from ..linear.state import State, initial_state
from .base import Attention
from .masking import allowed_keys, zero_masked


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

    @property
    def prepares(self) -> bool:
        """Whether features depend on more than the token itself, such as its position or other tokens."""
        return type(self).prepare is not KernelAttention.prepare

    def finish(self, output: Tensor, k: Tensor, key_mask, state=None) -> Tensor:
        """After the engine, for kernels that are not normalised by their row sum."""
        return output

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        q, k, _ = self.prepare(q, k, key_mask, position_ids)
        output, _ = self.run(q, k, v, key_mask)
        return self.finish(output, k, key_mask)

    def extend(self, q, k, v, state, key_mask=None):
        q, k, own = self.prepare(q, k, key_mask, None, state)
        output, after = self.run(q, k, v, key_mask, state)
        return self.finish(output, k, key_mask, state), {**after, **own}

    def absorb(self, k, v, state, key_mask=None):
        if self.prepares:  # its features depend on what `extend` alone keeps count of
            return super().absorb(k, v, state, key_mask)
        return self.run(no_query(k), k, v, key_mask, state, causal=False)[1]

    def step(self, q, k, v, state):
        if q.dim() == 3:
            output, state = self.step(q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2), state)
            return output.squeeze(2), state
        q, k, own = self.prepare(q, k, None, None, state)
        output, after = kernel_step(q, k, v, state, self.feature_map, normalise=self.normalise, eps=self.eps)
        return self.finish(output, k, None, state), {**after, **own}

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
            chunk_size=exact_chunk_size(k, self.feature_map, state, self.chunk_size) if causal else self.chunk_size,
        )

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        phi_q, phi_k = self.literal_features(q, zero_masked(k, key_mask), key_mask, position_ids)
        phi_q = phi_q if rows is None else phi_q[:, :, rows]
        return literal_weights(phi_q, phi_k, allowed_keys(k.shape[2], self.causal, key_mask, rows, k.device), self.eps)

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
