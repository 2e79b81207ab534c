"""Linear attention that forgets: a gate per token and head.

    S_t = g_t S_{t−1} + w_t φ(k_t) v_tᵀ,    o_t = φ(q_t)·S_t = Σ_{j≤t} e^{G_t − G_j} w_j φ(q_t)·φ(k_j) v_j

with G_t = Σ_{s≤t} log g_s.

In blocks of tokens: within one, the exponents are written out, and none is above 0; from block to block goes S.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def gated_attention(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, log_gate: Tensor, weight: Tensor, S: Tensor, block_size: int = 64
) -> tuple[Tensor, Tensor]:
    """φ (B, H, N, F), v (B, H, N, Dv), log g and w (B, H, N), S (B, H, F, Dv) -> o (B, H, N, Dv), and S after them"""
    length = v.shape[2]
    size = min(block_size, length)
    pad = -length % size
    phi_q, phi_k, v = (F.pad(x, (0, 0, 0, pad)).unflatten(2, (-1, size)) for x in (phi_q, phi_k, v))  # (B, H, J, C, ·)
    log_gate, weight = (F.pad(x, (0, pad)).unflatten(2, (-1, size)) for x in (log_gate, weight))
    G = log_gate.cumsum(-1)  # (B, H, J, C)
    later = torch.ones(size, size, device=v.device, dtype=torch.bool).triu(1)
    decay = (G.unsqueeze(-1) - G.unsqueeze(-2)).masked_fill(later, -torch.inf).exp()
    within = (phi_q @ phi_k.mT * decay * weight.unsqueeze(-2)) @ v
    last = G[..., -1:]
    updates = (phi_k * ((last - G).exp() * weight).unsqueeze(-1)).mT @ v  # (B, H, J, F, Dv)
    kept, met = last.exp().unsqueeze(-1), []
    for j in range(G.shape[2]):
        met.append(S)
        S = S * kept[:, :, j] + updates[:, :, j]
    output = within + (phi_q * G.exp().unsqueeze(-1)) @ torch.stack(met, 2)
    return output.flatten(2, 3)[:, :, :length], S
