"""RFA, random feature attention (Peng et al. 2021): the Gaussian kernel of directions, by sines and cosines.

    φ(x) = F^{−1/2} [sin Ωx̃, cos Ωx̃],    x̃ = σ∘x/‖x‖,    E φ(q)·φ(k) = exp(−‖q̃ − k̃‖²/2) ∝ exp(q̃·k̃) where σ is constant

The rows of Ω (H, F, D) are Gaussian, orthogonal in blocks of D; σ (H, D), learned, starts at 1. O(N·F·D), 2F features.

    o_i = Σ_j φ(q_i)·φ(k_j) v_j / max(Σ_j φ(q_i)·φ(k_j), 10⁻³ n_i),    n_i = the number of keys that i sees

The paper divides by the bare sum. That is signed and may vanish: its expectation is at least n e^{−2σ²}, which for
σ = 1 is far above the floor. Weights may be negative.

`gate=True`, causal: the state forgets, so that recent tokens count more,

    S_t = g_t S_{t−1} + (1 − g_t) φ(k_t) v_tᵀ,    z_t and n_t alike,    g_t = sigmoid(w·k_t + b) per head

The paper's gate reads the token x_t. This one reads its key, which is linear in it, so that it also works where
queries, keys and values are brought along. b starts at 3: a token fades over about twenty.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..linear.autocast import without_autocast
from ..linear.favor_plus import orthogonal_features
from ..linear.gated import gated_attention
from .base import Attention, check_choice, check_positive
from .masking import allowed_keys, zero_masked
from .random_features import RandomFeatures
from .registry import register_attention

FLOOR = 1e-3


@register_attention
class Rfa(RandomFeatures):
    """State: S (B, H, 2F, D + 1), with the sum of φ(k) as its last column, and n (B, H).

    Args:
        num_features: F, by default D; there are as many sines as cosines.
        gate: forget; causal only.
    """

    paper = "Peng 2021"
    cost = "NFD"
    exempt_from = ("row_sums",)
    supports_cross = True

    normalise = False  # by the engine: it would divide by any sum

    def __init__(
        self, hidden_size: int, num_heads: int, *, num_features: int | None = None, gate: bool = False, **common
    ):
        super().__init__(hidden_size, num_heads, **common)
        check_choice("gate", gate, (False, True))
        if gate and not self.causal:
            raise ValueError("gate=True forgets earlier tokens: it needs causal=True.")
        self.num_features, self.gate = self.head_dim if num_features is None else num_features, gate
        check_positive("num_features", self.num_features)
        self.add_projection(num_heads, self.num_features, self.head_dim)
        self.sigma = nn.Parameter(torch.empty(num_heads, self.head_dim))
        if gate:
            self.gate_weight = nn.Parameter(torch.empty(num_heads, self.head_dim))
            self.gate_bias = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self):
        super().reset_parameters()
        nn.init.ones_(self.sigma)
        if self.gate:
            nn.init.trunc_normal_(self.gate_weight, std=0.02)
            nn.init.constant_(self.gate_bias, 3.0)

    def draw(self, generator):
        _, half, width = self.projection.shape
        return torch.stack([orthogonal_features(half, width, "chi", generator) for _ in range(self.num_heads)])

    def sines(self, x: Tensor) -> Tensor:
        """φ: (B, H, N, D) -> (B, H, N, 2F)"""
        rows = self.projection.to(x.dtype) * self.sigma.to(x.dtype).unsqueeze(1)  # Ω diag σ
        angles = F.normalize(x, dim=-1) @ rows.mT
        return torch.cat([angles.sin(), angles.cos()], -1) * rows.shape[1] ** -0.5

    def log_gates(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """log g and log(1 − g), (B, H, N)"""
        logits = torch.einsum("bhnd,hd->bhn", k, self.gate_weight.to(k.dtype)) + self.gate_bias.to(k.dtype)[:, None]
        return F.logsigmoid(logits), F.logsigmoid(-logits)

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        state = None
        if self.causal:
            state = self.initial_state(v.shape[0], v.device, torch.promote_types(v.dtype, torch.float32))
        return self.extend(q, k, v, state, key_mask)[0]

    def extend(self, q, k, v, state, key_mask=None):
        dtype, wide = v.dtype, torch.promote_types(v.dtype, torch.float32)
        with without_autocast(v):
            q, k, v = q.to(wide), zero_masked(k, key_mask).to(wide), zero_masked(v, key_mask).to(wide)
            phi_q, phi_k, values = self.sines(q), self.sines(k), F.pad(v, (0, 1), value=1.0)
            if self.gate:
                log_gate, log_write = self.log_gates(k)
                write = log_write.exp()
                if key_mask is not None:  # padding neither fades nor adds
                    log_gate, write = (x * key_mask.unsqueeze(1) for x in (log_gate, write))
                kept = F.dropout(write.new_ones(write.shape), self.dropout, self.training)
                sums, S = gated_attention(phi_q, phi_k, values, log_gate, write * kept, state["S"].to(wide))
                G = log_gate.cumsum(-1)
                n = state["n"].to(wide).unsqueeze(-1) * G.exp() - G.expm1()  # (B, H, N)
            else:
                sums, after = self.run(phi_q, phi_k, values, key_mask, state)
                S, n = after.get("S"), self.keys_seen(k, key_mask, state)
            sums, total = sums.split([v.shape[-1], 1], -1)
            total = torch.maximum(total, FLOOR * n.unsqueeze(-1))
            output = sums / total.masked_fill(total == 0, torch.inf)
        return output.to(dtype), state and {"S": S, "n": n[..., -1].expand(S.shape[:2])}

    def keys_seen(self, k: Tensor, key_mask: Tensor | None, state) -> Tensor:
        """n of each query: (B, H or 1, N), or (B, 1, 1) where all see the same"""
        real = k.new_ones(k.shape[0], 1, k.shape[2]) if key_mask is None else key_mask.unsqueeze(1).to(k.dtype)
        if state is None:
            return real.sum(-1, keepdim=True)
        return state["n"].to(k.dtype).unsqueeze(-1) + real.cumsum(-1)

    step, absorb = Attention.step, Attention.absorb  # `extend` is all that they need

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        shape = (batch_size, self.num_heads)
        return {
            "S": torch.zeros(*shape, 2 * self.num_features, self.head_dim + 1, device=device, dtype=dtype),
            "n": torch.zeros(shape, device=device, dtype=dtype),
        }

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        k, length = zero_masked(k, key_mask), k.shape[2]
        omega = self.projection.to(q.dtype)  # (H, F, D)
        angles = []
        for x in (q, k):
            direction = x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)
            angles.append((self.sigma.to(x.dtype).unsqueeze(1) * direction) @ omega.mT)
        # sin a sin b + cos a cos b, a mean over F
        scores = angles[0].sin() @ angles[1].sin().mT + angles[0].cos() @ angles[1].cos().mT
        counts = torch.ones_like(scores[..., :1, :1]).expand(*scores.shape)
        allowed = allowed_keys(length, self.causal, key_mask, None, k.device)
        if self.gate:
            logits = (k * self.gate_weight.to(k.dtype).unsqueeze(1)).sum(-1) + self.gate_bias.to(k.dtype)[:, None]
            gate = logits.sigmoid()
            gate = gate if key_mask is None else gate.masked_fill(~key_mask.unsqueeze(1), 1)
            since = gate.log().cumsum(-1)
            faded = (since.unsqueeze(-1) - since.unsqueeze(-2)).tril().exp()  # Π of the gates after j up to i
            counts = faded * (1 - gate).unsqueeze(-2)  # what is left of j when i is read
        if allowed is not None:
            counts = counts.masked_fill(~allowed, 0)
        scores = scores / omega.shape[1] * counts
        total = torch.maximum(scores.sum(-1, keepdim=True), FLOOR * counts.sum(-1, keepdim=True))
        matrix = scores / total.masked_fill(total == 0, torch.inf)
        return matrix if rows is None else matrix[:, :, rows]
