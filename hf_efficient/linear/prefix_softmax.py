"""Kernel attention whose keys are normalised per feature over the tokens, as `efficient` and `separable` have it.

    o_i = Σ_f p_if Σ_{j∈A(i)} ρ_jf v_j,    ρ_jf = e^{l_jf} / Σ_{j'∈A(i)} e^{l_j'f}

Bidirectional, ρ is a softmax over all tokens. Causal, it is one over the prefix of each i, computed in O(N) as kernel
attention without division on log-features log p_i − logΣ_{j≤i} e^{l_j} and l_j. The common shortcut, e^{l} with a
single denominator over all features, is another function.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .chunked import kernel_attention
from .features import NO_KEY, LogFeatureMap
from .recurrent import kernel_step
from .stabilise import safe_chunk_size
from .state import State, initial_state

_MAP = LogFeatureMap()


def prefix_softmax_state(batch_size, num_heads, num_features, value_dim, device=None, dtype=torch.float32) -> State:
    """S (B, H, F, Dv), its running maximum c (B, H, F) and z (B, H, F), the logarithm of the normaliser."""
    state = initial_state(batch_size, num_heads, num_features, value_dim, _MAP, False, device, dtype)
    return {**state, "z": state["c"].clone()}


def pooled_attention(p: Tensor, logits: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """Bidirectional: p, logits (B, H, N, F), v (B, H, N, Dv) with zeros at masked tokens -> (B, H, N, Dv)."""
    if key_mask is not None:
        logits = logits.masked_fill(~key_mask[:, None, :, None], torch.finfo(logits.dtype).min)
    rho = logits.softmax(2)
    if key_mask is not None:
        rho = rho * key_mask[:, None, :, None]
    return p @ (rho.mT @ v)


def prefix_attention(
    log_p: Tensor, logits: Tensor, v: Tensor, state: State, key_mask=None, key_weight=None, chunk_size=None
) -> tuple[Tensor, State]:
    """Causal: log p, logits (B, H, N, F), v (B, H, N, Dv), tokens that follow those in `state`."""
    if key_mask is not None:
        logits = logits.masked_fill(~key_mask[:, None, :, None], NO_KEY)
    if key_weight is not None:
        logits = logits + key_weight.log().clamp_min(NO_KEY).unsqueeze(-1)
    chunk_size = safe_chunk_size(logits, state["z"], chunk_size or 256)
    z = _prefix_logsumexp(logits, state["z"], chunk_size)
    log_q = torch.where(z > NO_KEY / 2, log_p - z, NO_KEY)  # a row that sees no key outputs 0
    engine_mask = None if key_mask is None and key_weight is None else (logits > NO_KEY / 2).any(-1)
    output, after = kernel_attention(
        log_q,
        logits,
        v,
        _MAP,
        causal=True,
        state=state,
        key_weight=engine_mask,
        normalise=False,
        chunk_size=chunk_size,
    )
    return output, {**after, "z": z[:, :, -1]}


def prefix_step(log_p: Tensor, logits: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
    """One token of `prefix_attention`."""
    z = torch.logaddexp(state["z"], logits.squeeze(2).to(state["z"].dtype))
    output, after = kernel_step(log_p - z.unsqueeze(2), logits, v, state, _MAP, normalise=False)
    return output, {**after, "z": z}


def _prefix_logsumexp(logits: Tensor, before: Tensor, chunk_size: int) -> Tensor:
    """logΣ_{j≤i} e^{l_j}, (B, H, N, F): a triangular matmul within chunks, a short scan across them."""
    length = logits.shape[2]
    chunks = F.pad(logits, (0, 0, 0, -length % chunk_size), value=NO_KEY).unflatten(2, (-1, chunk_size))
    top = torch.maximum(chunks.detach().amax(3).cummax(2).values, before.detach().unsqueeze(2)).unsqueeze(3)
    exponentials = torch.exp(chunks - top)  # (B, H, n, C, F)
    within = exponentials.new_ones(chunk_size, chunk_size).tril_() @ exponentials
    total = within[..., -1:, :].clamp_min(torch.finfo(within.dtype).tiny).log() + top
    across = torch.cat([before[:, :, None, None], total], 2).logcumsumexp(2)[:, :, :-1]
    seen = torch.exp(across - top) + within
    z = torch.where(seen > 0, seen.clamp_min(torch.finfo(seen.dtype).tiny).log() + top, NO_KEY)
    return z.flatten(2, 3)[:, :, :length]
