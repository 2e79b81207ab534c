"""Kerformer (Gan et al. 2023, "A novel approach to attention mechanism using kernel functions").

    A_ij ∝ σ(q_i)·(s_j softmax(k_j)),    s = σ(W₂(W₁ z + b₁) + b₂),    z_j = pool(softmax(k_j)),    F = D

linear kernel attention whose keys are re-weighted per token by SE-K, a squeeze-and-excitation over positions: W₁
(R, N_max), W₂ (N_max, R), R = N_max / r. One SE-K per layer, shared by the heads. No activation stands between W₁ and
W₂, so it is a rank-R affine map. W₂ = b₂ = 0 at the start: s = ½ cancels in the ratio and SE-K is an exact no-op.

Where the paper is ambiguous:
- softmax over features ("row by row", eq. 9, causal) by default; `key_softmax="sequence"` is its other reading.
- "pool K along N" gives D numbers where N are needed, so pooling is over features. Their mean after a softmax is 1/D
  whatever the input, so `se_pool` is "max" by default ("mean" with the sequence softmax).
- tables are indexed by position: short inputs slice them, dropped patches keep their entry, `resample` adapts them to
  another image size. `se_mode="conv"` is a 1-D convolution over z instead (ECA), for any length.
- causal: s_i sees z_j for j ≤ i only, that is tril(W₂W₁), itself a causal kernel attention with R features.

The rows of Table 6 are q_act="identity"; k_act="identity"; se_k=False; and the defaults. An identity gives a signed
kernel whose row sum may cross zero: then the output is divided by the number of keys instead.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..linear.chunked import kernel_attention
from ..linear.heads_first import scale_tokens
from ..linear.literal import literal_weights
from .base import check_choice, check_positive
from .kernel_attention import KernelAttention
from .masking import allowed_keys, token_positions, zero_masked
from .position_table import lookup, resample_positions, table_positions
from .registry import register_attention


class Table(nn.Module):
    """A weight (n, m) and a bias (n,) that are looked up; calling it brings them, wherever they are offloaded to.

    No `nn.Linear`, which adapters and quantisation would take for a layer that is called with tokens.
    """

    def __init__(self, rows: int, columns: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(rows, columns)), nn.Parameter(torch.empty(rows))

    def forward(self) -> tuple[Tensor, Tensor]:
        return self.weight, self.bias


class SeK(nn.Module):
    """Position weights by tables: z (B, H, N) -> s (B, H, N)."""

    def __init__(self, max_length: int, reduction: int):
        super().__init__()
        self.rank = max(1, max_length // reduction)
        self.squeeze = Table(self.rank, max_length)
        self.excite = Table(max_length, self.rank)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.squeeze.weight, std=0.02)
        for zero in (self.squeeze.bias, self.excite.weight, self.excite.bias):
            nn.init.zeros_(zero)

    def tables(self, at, dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """W₁ᵀ (N, R), b₁ (R,), W₂ (N, R) and b₂ (N,) at the positions, or with a leading B where rows differ."""
        squeeze, squeeze_bias = self.squeeze()
        excite, excite_bias = self.excite()
        entries = lookup(squeeze, at, 1).mT, squeeze_bias, lookup(excite, at, 0), lookup(excite_bias, at, 0)
        return tuple(x.to(dtype) for x in entries)

    def forward(self, z: Tensor, at: Tensor | slice) -> Tensor:
        squeeze, squeeze_bias, excite, bias = self.tables(at, z.dtype)
        hidden = z @ squeeze + squeeze_bias  # (B, H, R)
        return torch.sigmoid(hidden @ excite.mT + (bias if bias.dim() == 1 else bias.unsqueeze(1)))

    def causal(self, z: Tensor, at: Tensor | slice, state: Tensor) -> tuple[Tensor, Tensor]:
        """The same with z_j for j ≤ i only; the state is Σ_j W₁[:, j] z_j, (B, R, H)."""
        squeeze, squeeze_bias, excite, bias = self.tables(at, z.dtype)
        batch, length = z.shape[0], z.shape[2]
        tables = (x.expand(batch, length, self.rank).unsqueeze(1) for x in (excite, squeeze))
        sums, after = kernel_attention(
            *tables, z.mT.unsqueeze(1), causal=True, normalise=False, state={"S": state.unsqueeze(1)}
        )
        constant = excite @ squeeze_bias + bias  # (N,) or (B, N)
        constant = constant if constant.dim() == 1 else constant.unsqueeze(1)
        return torch.sigmoid(sums.squeeze(1).mT + constant), after["S"].squeeze(1)

    def literal(self, z: Tensor, positions: Tensor, causal: bool) -> Tensor:
        matrix = self.excite.weight[positions] @ self.squeeze.weight.T[positions].mT  # W₂W₁ (B, N, N)
        matrix = (matrix.tril() if causal else matrix).to(z.dtype).unsqueeze(1)
        constant = self.excite.weight[positions] @ self.squeeze.bias + self.excite.bias[positions]
        return torch.sigmoid((matrix @ z.unsqueeze(-1)).squeeze(-1) + constant.to(z.dtype).unsqueeze(1))

    @property
    def max_length(self) -> int:
        return self.excite.bias.shape[0]

    def resampled(self, *grids) -> dict[str, Tensor]:
        excite, bias = self.excite()
        return {
            "squeeze.weight": resample_positions(self.squeeze()[0], 1, *grids, keep_sum=True),
            "excite.weight": resample_positions(excite, 0, *grids),
            "excite.bias": resample_positions(bias, 0, *grids),
        }


class ConvSeK(nn.Module):
    """Position weights by a convolution over the tokens, for any length; padding counts as tokens of z = 0."""

    def __init__(self, kernel_size: int, causal: bool):
        super().__init__()
        self.kernel_size, self.is_causal = kernel_size, causal
        self.weight, self.bias = nn.Parameter(torch.empty(1, 1, kernel_size)), nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, z: Tensor, past: Tensor | None = None) -> Tensor:
        """z (B, H, N), past (B, H, κ−1) -> s (B, H, N)"""
        if past is None:
            left = self.kernel_size - 1 if self.is_causal else self.kernel_size // 2
            z = F.pad(z, (left, self.kernel_size - 1 - left))
        else:
            z = torch.cat([past, z], -1)
        return torch.sigmoid(F.conv1d(z.flatten(0, 1).unsqueeze(1), self.weight.to(z), self.bias.to(z))).view(
            *z.shape[:2], -1
        )

    def literal(self, z: Tensor) -> Tensor:
        left, total = self.kernel_size - 1 if self.is_causal else self.kernel_size // 2, torch.zeros_like(z)
        for tap in range(self.kernel_size):
            for i in range(z.shape[-1]):
                if 0 <= i + tap - left < z.shape[-1]:
                    total[..., i] += self.weight[0, 0, tap].to(z) * z[..., i + tap - left]
        return torch.sigmoid(total + self.bias.to(z))


@register_attention
class Kerformer(KernelAttention):
    """
    Args:
        q_act, k_act: "sigmoid" / "softmax", or "identity" (ablations).
        se_k: re-weight the keys.
        key_softmax: "feature" or "sequence" (bidirectional only).
        se_pool: "max" or "mean" over features; None chooses by `key_softmax`.
        se_mode: "table" (positions, up to `max_length`) or "conv" (any length).
        max_length: N_max of the tables.
        se_reduction: r.
        conv_kernel: odd width of the convolution.
        allow_degenerate: permit se_pool="mean" with the feature softmax, which makes SE-K static.
    """

    paper = "Gan 2023"
    cost = "ND² + NR"
    exempt_from = ("permutation",)
    fixed_length = True
    supports_cross = True

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        q_act: str = "sigmoid",
        k_act: str = "softmax",
        se_k: bool = True,
        key_softmax: str = "feature",
        se_pool: str | None = None,
        se_mode: str = "table",
        max_length: int = 1024,
        se_reduction: int = 16,
        conv_kernel: int = 5,
        allow_degenerate: bool = False,
        **common,
    ):
        super().__init__(hidden_size, num_heads, **common)
        check_choice("q_act", q_act, ("sigmoid", "identity"))
        check_choice("k_act", k_act, ("softmax", "identity"))
        check_choice("se_k", se_k, (False, True))
        check_choice("key_softmax", key_softmax, ("feature", "sequence"))
        check_choice("se_pool", se_pool, (None, "max", "mean"))
        check_choice("se_mode", se_mode, ("table", "conv"))
        check_positive("max_length", max_length)
        check_positive("se_reduction", se_reduction)
        check_choice("allow_degenerate", allow_degenerate, (False, True))
        check_positive("conv_kernel", conv_kernel)
        if conv_kernel % 2 == 0:
            raise ValueError(f"conv_kernel={conv_kernel} must be odd, to be centred on a token.")
        if key_softmax == "sequence" and self.causal:
            self.refuse(
                "causal=True",
                "supports_causal",
                " with key_softmax='sequence' (a softmax over all tokens): use 'feature'",
            )
        se_pool = se_pool or ("max" if key_softmax == "feature" else "mean")
        if se_k and se_pool == "mean" and key_softmax == "feature" and k_act == "softmax" and not allow_degenerate:
            raise ValueError(
                "se_pool='mean' over a feature softmax is 1/D for every input, so SE-K would not see the keys: "
                "use se_pool='max', key_softmax='sequence', or allow_degenerate=True for static position weights."
            )
        self.q_act, self.k_act, self.key_softmax, self.se_pool = q_act, k_act, key_softmax, se_pool
        self.normalise = "identity" not in (q_act, k_act)
        if not self.normalise:
            self.exempt_from = (*self.exempt_from, "row_sums")
        self.fixed_length = se_k and se_mode == "table"
        self.se_k = None
        if se_k:
            self.se_k = SeK(max_length, se_reduction) if se_mode == "table" else ConvSeK(conv_kernel, self.causal)

    def resampled(self, old_grid, new_grid, num_prefix_tokens=1):
        tables = self.se_k.resampled(old_grid, new_grid, num_prefix_tokens) if self.fixed_length else {}
        return {f"se_k.{name}": table for name, table in tables.items()}

    def features(self, q, k, key_mask):
        """φ_q, φ_k before SE-K, and SE-K's input z (B, H, N)."""
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide), zero_masked(k, key_mask).to(wide)
        if self.q_act == "sigmoid":
            q = q.sigmoid()
        if self.k_act == "softmax" and self.key_softmax == "feature":
            k = k.transpose(1, 2).softmax(-1).transpose(1, 2)  # in the order that projections leave, to spare copies
        elif self.k_act == "softmax":
            shut = k if key_mask is None else k.masked_fill(~key_mask[:, None, :, None], torch.finfo(wide).min)
            k = shut.softmax(2)
        k = zero_masked(k, key_mask)
        pooled = k.transpose(1, 2).max(-1).values.transpose(1, 2) if self.se_pool == "max" else k.mean(-1)
        return q, k, pooled

    def prepare(self, q, k, key_mask, position_ids, state=None):
        q, k, z = self.features(q, k, key_mask)
        own = {}
        if state is not None:
            seen = k.shape[2] if key_mask is None else key_mask.sum(-1)
            own["length"] = state["length"] + seen
            positions = token_positions(None, key_mask, k.shape[0], k.shape[2], k.device)
            position_ids = positions + state["length"].unsqueeze(-1)
        if self.se_k is None:
            return q, k, own
        if not self.fixed_length:
            s = self.se_k(z, None if state is None else state["past"])
            if state is not None:
                own["past"] = torch.cat([state["past"], z], -1)[..., z.shape[-1] :]
            return q, k * s.unsqueeze(-1), own
        at = table_positions(self.name, self.se_k.max_length, k.shape[0], k.shape[2], key_mask, position_ids)
        if not self.causal:
            return q, scale_tokens(k, self.se_k(z, at)), own
        before = z.new_zeros(q.shape[0], self.se_k.rank, self.num_heads) if state is None else state["se"]
        s, after = self.se_k.causal(z, at, before)
        if state is not None:
            own["se"] = after
        return q, k * s.unsqueeze(-1), own

    def finish(self, output, k, key_mask, state=None):
        if self.normalise:
            return output
        return output / self.key_count(k, key_mask, state).to(output.dtype)

    def key_count(self, k, key_mask, state=None):
        """How many keys each query sees, at least 1: (B or 1, 1, N or 1, 1)."""
        real = torch.ones(1, k.shape[2], device=k.device) if key_mask is None else key_mask.to(torch.float32)
        count = real.cumsum(-1) if self.causal else real.sum(-1, keepdim=True)
        if state is not None:
            count = count + state["length"].unsqueeze(-1)
        return count.clamp_min(1)[:, None, :, None]

    def literal_features(self, q, k, key_mask, position_ids):
        wide = torch.promote_types(q.dtype, torch.float32)
        phi_q, phi_k = q.to(wide), zero_masked(k, key_mask).to(wide)
        if self.q_act == "sigmoid":
            phi_q = (1 + (phi_q / 2).tanh()) / 2
        if self.k_act == "softmax":
            over = -1 if self.key_softmax == "feature" else 2
            powers = zero_masked((phi_k - phi_k.detach().amax(over, keepdim=True)).exp(), key_mask)
            phi_k = powers / powers.sum(over, keepdim=True).clamp_min(torch.finfo(wide).tiny)
        z = phi_k.amax(-1) if self.se_pool == "max" else phi_k.sum(-1) / self.head_dim
        if self.fixed_length:
            positions = token_positions(position_ids, key_mask, k.shape[0], k.shape[2], k.device)
            phi_k = phi_k * self.se_k.literal(z, positions, self.causal).unsqueeze(-1)
        elif self.se_k is not None:
            phi_k = phi_k * self.se_k.literal(z).unsqueeze(-1)
        return phi_q, phi_k

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        phi_q, phi_k = self.literal_features(q, k, key_mask, position_ids)
        phi_q = phi_q if rows is None else phi_q[:, :, rows]
        allowed = allowed_keys(k.shape[2], self.causal, key_mask, rows, k.device)
        if self.normalise:
            return literal_weights(phi_q, phi_k, allowed).to(q.dtype)
        scores, count = phi_q @ phi_k.mT, self.key_count(k, key_mask).to(phi_q.dtype)
        scores = scores if allowed is None else scores.masked_fill(~allowed, 0)
        return (scores / (count[:, :, rows] if self.causal and rows is not None else count)).to(q.dtype)

    def initial_state(self, batch_size, device=None, dtype=torch.float32):
        state = super().initial_state(batch_size, device, dtype)
        state["length"] = torch.zeros(batch_size, device=device, dtype=torch.long)
        if self.fixed_length:
            state["se"] = torch.zeros(batch_size, self.se_k.rank, self.num_heads, device=device, dtype=dtype)
        elif self.se_k is not None:
            past = self.se_k.kernel_size - 1
            state["past"] = torch.zeros(batch_size, self.num_heads, past, device=device, dtype=dtype)
        return state
