"""The token mixing of MLP-Mixer (Tolstikhin et al. 2021): a two-layer perceptron along the sequence.

    y = W₂ gelu(W₁ x + b₁) + b₂,    W₁ (T, max_length), W₂ (max_length, T)

The same for every channel of x (B, N, d), without looking at the content of a token to weigh another. Columns of W₁
and rows of W₂ and b₂ belong to positions: tokens pick theirs by `position_ids` and padding adds nothing, so a shorter
input equals the same input padded with zeros. O(N·T·d). Not causal.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .base import Attention, AttentionOutput, check_positive
from .masking import token_positions, zero_masked
from .position_table import lookup, resample_positions, table_positions
from .registry import register_attention


@register_attention
class Mixer(Attention):
    """Works on hidden states: it has no projections and no heads. `dropout` acts on the T hidden units.

    Args:
        max_length: positions that the tables have entries for.
        token_dim: T, by default max_length / 2.
    """

    paper = "Tolstikhin 2021"
    cost = "NTd"
    exempt_from = ("permutation",)
    fixed_length = True
    per_head = False

    def __init__(
        self, hidden_size: int, num_heads: int, *, max_length: int = 1024, token_dim: int | None = None, **common
    ):
        super().__init__(hidden_size, num_heads, **common)
        check_positive("max_length", max_length)
        token_dim = max(1, max_length // 2) if token_dim is None else token_dim
        check_positive("token_dim", token_dim)
        self.token_dim = token_dim
        self.W1 = nn.Parameter(torch.empty(token_dim, max_length))
        self.b1 = nn.Parameter(torch.empty(token_dim))
        self.W2 = nn.Parameter(torch.empty(max_length, token_dim))
        self.b2 = nn.Parameter(torch.empty(max_length))
        self.reset_parameters()

    def build_projections(self, bias, output_bias):
        pass

    def reset_parameters(self) -> None:
        for weight, bias in ((self.W1, self.b1), (self.W2, self.b2)):
            nn.init.trunc_normal_(weight, std=0.02)
            nn.init.zeros_(bias)

    @property
    def max_length(self) -> int:
        return self.W1.shape[1]

    def resampled(self, old_grid, new_grid, num_prefix_tokens=1):
        grids = old_grid, new_grid, num_prefix_tokens
        return {
            "W1": resample_positions(self.W1, 1, *grids, keep_sum=True),
            "W2": resample_positions(self.W2, 0, *grids),
            "b2": resample_positions(self.b2, 0, *grids),
        }

    def forward(self, hidden_states, key_mask=None, position_ids=None, *more, **named):
        position_ids = self.check_inputs(hidden_states, key_mask, position_ids, *more, **named)
        at = table_positions(self.name, self.max_length, *hidden_states.shape[:2], key_mask, position_ids)
        W1, W2, b2 = lookup(self.W1, at, 1), lookup(self.W2, at, 0), lookup(self.b2, at, 0)
        x = zero_masked(hidden_states.unsqueeze(1), key_mask).squeeze(1)
        hidden = F.gelu(W1 @ x + self.b1.unsqueeze(-1))  # (B, T, d)
        output = W2 @ F.dropout(hidden, self.dropout, self.training) + b2.unsqueeze(-1)
        return AttentionOutput(self.output_dropout(zero_masked(output.unsqueeze(1), key_mask).squeeze(1)))

    def naive(self, hidden_states, key_mask=None, position_ids=None):
        x = zero_masked(hidden_states.unsqueeze(1), key_mask).squeeze(1)
        positions = token_positions(position_ids, key_mask, *x.shape[:2], x.device)
        place = F.one_hot(positions, self.max_length).to(x)  # (B, N, max_length)
        channels = (place.mT @ x).mT  # (B, d, max_length), as the paper has it
        mixed = F.linear(F.gelu(F.linear(channels, self.W1, self.b1)), self.W2, self.b2)
        return zero_masked((place @ mixed.mT).unsqueeze(1), key_mask).squeeze(1)
