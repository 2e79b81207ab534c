"""Cross-covariance attention, XCA (El-Nouby et al. 2021, "XCiT"): channels attend to channels.

    A = softmax(τ q̂ᵀ k̂)  (D, D),    o = v Aᵀ

q̂ and k̂ are q and k divided per channel by their norm along the sequence, τ is learned per head (spare it weight
decay). O(N·D²), and no N×N matrix exists: only the statistics G = qᵀk, |q|², |k|² enter, to which padding adds zero.

Causal, this library's form: token i uses the statistics of the tokens up to it,

    o_i = softmax(τ G_i / (|q|_i |k|_i)) v_i,    G_i = Σ_{j≤i} q_j k_jᵀ

in the same O(N·D²), with G, |q|² and |k|² as the state. Segments are recomputed in the backward pass, so that of the
N matrices G_i only one per segment is kept.

Norms below 1e-6 count as 1e-6: an all-zero channel gets uniform weights and finite gradients, any other is exact.
The published block's local patch interaction and class attention are not part of this mechanism.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..linear.autocast import without_autocast
from ..linear.state import State
from .base import Attention
from .masking import zero_masked
from .registry import register_attention

MIN_NORM = 1e-6

# Tokens whose D×D matrices exist at once: a chunk's while computing, a segment's in the backward pass.
CHUNK, SEGMENT = 8, 32


@register_attention
class Xcit(Attention):
    """Tokens meet only in the D×D matrix, so its cost per token does not depend on how many there are."""

    paper = "El-Nouby 2021"
    cost = "ND²"
    supports_causal = True
    supports_recurrent = True

    absorb = None  # its statistics are of queries with keys

    def __init__(self, hidden_size: int, num_heads: int, **common):
        super().__init__(hidden_size, num_heads, **common)
        self.temperature = nn.Parameter(torch.empty(num_heads, 1, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.temperature)

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        if self.causal:
            return self.extend(q, k, v, self.initial_state(q.shape[0], q.device), key_mask)[0]
        dtype, (q, k, v) = v.dtype, widen(q, k, v, key_mask)
        with without_autocast(v):
            squares = (x.square().sum(2, keepdim=True) for x in (q, k))
            A = self.channel_weights((q.mT @ k).unsqueeze(2), *squares).squeeze(2)  # (B, H, D, D)
            return (v @ A.mT).to(dtype)

    def channel_weights(self, G: Tensor, q_square: Tensor, k_square: Tensor) -> Tensor:
        """G (B, H, C, D, D) and squared norms (B, H, C, D), one for each of C tokens -> softmax over key channels"""
        tau = self.temperature.to(G.dtype).unsqueeze(1)
        q_scale = tau * inverse_norm(q_square).unsqueeze(-1)
        A = (G * q_scale * inverse_norm(k_square).unsqueeze(-2)).softmax(-1)
        return F.dropout(A, self.dropout, self.training)

    def naive(self, q, k, v, key_mask=None, position_ids=None):
        q, k, v = (zero_masked(x, key_mask) for x in (q, k, v))

        def covariance_attention(q, k, v):
            q, k = F.normalize(q, dim=2, eps=MIN_NORM), F.normalize(k, dim=2, eps=MIN_NORM)
            return v @ (self.temperature * (q.mT @ k)).softmax(-1).mT

        if not self.causal:
            return covariance_attention(q, k, v)
        prefixes = range(1, q.shape[2] + 1)
        return torch.cat([covariance_attention(q[:, :, :n], k[:, :, :n], v[:, :, n - 1 : n]) for n in prefixes], 2)

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        """G (B, H, D, D), |q|² and |k|² (B, H, D)"""
        H, D = self.num_heads, self.head_dim
        shapes = {"G": (H, D, D), "q_square": (H, D), "k_square": (H, D)}
        return {name: torch.zeros(batch_size, *shape, device=device, dtype=dtype) for name, shape in shapes.items()}

    def extend(self, q, k, v, state, key_mask=None):
        dtype, (q, k, v) = v.dtype, widen(q, k, v, key_mask)
        state = {name: x.to(v.dtype) for name, x in state.items()}
        with without_autocast(v):
            output, state = scan(self.extend_segment, SEGMENT, q, k, v, state)
        return output.to(dtype), state

    def extend_segment(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        inputs = self.extend_chunk, CHUNK, q, k, v, state
        return checkpoint(scan, *inputs, use_reentrant=False) if torch.is_grad_enabled() else scan(*inputs)

    def extend_chunk(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        """q, k, v (B, H, C, D): the statistics after each of C tokens, side by side"""
        sums = {"G": q.unsqueeze(-1) * k.unsqueeze(-2), "q_square": q.square(), "k_square": k.square()}
        for name, x in sums.items():
            x[:, :, 0] += state[name]
            sums[name] = x.cumsum(2)
        output = (self.channel_weights(*sums.values()) @ v.unsqueeze(-1)).squeeze(-1)
        return output, {name: x[:, :, -1].clone() for name, x in sums.items()}


def scan(step, size: int, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
    """`step` on `size` tokens at a time, each starting from the state that the one before it left."""
    outputs = []
    for piece in zip(*(x.split(size, 2) for x in (q, k, v)), strict=True):
        output, state = step(*piece, state)
        outputs.append(output)
    return torch.cat(outputs, 2), state


def widen(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, ...]:
    """Zeros at padding, and float32 at least: sums over all tokens lose small terms in less."""
    wide = torch.promote_types(v.dtype, torch.float32)
    return tuple(zero_masked(x, key_mask).to(wide) for x in (q, k, v))


def inverse_norm(square: Tensor) -> Tensor:
    return square.clamp_min(MIN_NORM**2).rsqrt()
