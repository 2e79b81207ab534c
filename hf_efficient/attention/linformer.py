"""Linformer (Wang et al. 2020): keys and values are projected from N tokens to p along the sequence.

    k̃ = E k,  ṽ = F v,    o = softmax(q k̃ᵀ / √D) ṽ

E and F (p, max_length) are shared by the heads. A column belongs to a position: tokens pick theirs by `position_ids`,
padding adds nothing, so a shorter input equals the same input padded with zeros. O(N·p·D). Not causal: every row of E
mixes all tokens.
"""

import torch
from torch import Tensor, nn

from .base import Attention, check_choice, check_positive
from .masking import token_positions, zero_masked
from .position_table import lookup, resample_positions, table_positions
from .registry import register_attention
from .softmax import softmax_attention


@register_attention
class Linformer(Attention):
    """Its N×N matrix, softmax(q k̃ᵀ / √D) F, has negative entries and rows of any sum.

    Args:
        max_length: positions that E and F have columns for.
        num_projections: p, never more than `max_length`.
        share_kv: F = E.
    """

    paper = "Wang 2020"
    cost = "NpD"
    exempt_from = ("row_sums", "permutation")
    fixed_length = True
    supports_cross = True

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        max_length: int = 1024,
        num_projections: int = 256,
        share_kv: bool = False,
        **common,
    ):
        super().__init__(hidden_size, num_heads, **common)
        check_positive("max_length", max_length)
        check_positive("num_projections", num_projections)
        check_choice("share_kv", share_kv, (False, True))
        self.num_projections = min(num_projections, max_length)
        self.share_kv = share_kv
        self.E = nn.Parameter(torch.empty(self.num_projections, max_length))
        if not share_kv:
            self.F = nn.Parameter(torch.empty(self.num_projections, max_length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in self.tables():
            nn.init.normal_(table, std=self.num_projections**-0.5)

    def tables(self) -> tuple[nn.Parameter, ...]:
        return (self.E,) if self.share_kv else (self.E, self.F)

    @property
    def max_length(self) -> int:
        return self.E.shape[1]

    def resampled(self, old_grid, new_grid, num_prefix_tokens=1):
        grids = old_grid, new_grid, num_prefix_tokens
        names = ("E",) if self.share_kv else ("E", "F")
        return {name: resample_positions(getattr(self, name), 1, *grids, keep_sum=True) for name in names}

    def positions(self, x: Tensor, key_mask, position_ids) -> Tensor | slice:
        return table_positions(self.name, self.max_length, x.shape[0], x.shape[2], key_mask, position_ids)

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        at = self.positions(k, key_mask, position_ids)
        E = lookup(self.E, at, 1)  # (p, N) or (B, p, N)
        F = E if self.share_kv else lookup(self.F, at, 1)
        k, v = project_tokens(E, zero_masked(k, key_mask)), project_tokens(F, zero_masked(v, key_mask))
        return softmax_attention(q, k, v, dropout=self.dropout if self.training else 0.0)

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        at = self.positions(k, key_mask, position_ids)
        k = project_tokens(lookup(self.E, at, 1), zero_masked(k, key_mask))  # (B, H, p, D)
        F = lookup(self.tables()[-1], at, 1)
        F = F if F.dim() == 2 else F.unsqueeze(1)  # beside the heads
        logits = (q if rows is None else q[:, :, rows]) @ k.mT * self.head_dim**-0.5
        weights = logits.softmax(-1) @ F
        return weights if key_mask is None else weights.masked_fill(~key_mask[:, None, None, :], 0)

    def naive(self, q, k, v, key_mask=None, position_ids=None):
        positions = token_positions(position_ids, key_mask, k.shape[0], k.shape[2], k.device)
        place = nn.functional.one_hot(positions, self.max_length).to(k).unsqueeze(1).mT  # (B, 1, max_length, N)
        k = self.E @ (place @ zero_masked(k, key_mask))
        v = self.tables()[-1] @ (place @ zero_masked(v, key_mask))
        return (q @ k.mT / self.head_dim**0.5).softmax(-1) @ v


def project_tokens(table: Tensor, x: Tensor) -> Tensor:
    """(p, N) or (B, p, N), times x (B, H, N, D) with the heads side by side -> (B, H, p, D)"""
    heads = x.transpose(1, 2)  # (B, N, H, D)
    return (table @ heads.flatten(2)).unflatten(2, heads.shape[2:]).transpose(1, 2)
