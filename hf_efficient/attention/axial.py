"""Axial attention (Ho et al. 2019; Wang et al. 2020, "Axial-DeepLab"): tokens of an R × C grid, row by row.

    y = W_oʳ · SDPA along i's row + W_oᶜ · SDPA along i's column

with projections of its own for either axis. Cost O(N·(R + C)·D). The axes' projections are stacked: q_proj, k_proj
and v_proj (axes·H·D, d) give the heads of the rows first, then those of the columns, and o_proj (d, axes·H·D) sums
the axes' outputs. Padded cells are masked; a CLS token is not on the grid.
"""

import torch
from torch import Tensor

from .base import Attention, check_choice, linear
from .masking import masked_softmax, zero_masked
from .registry import register_attention
from .softmax import softmax_attention


@register_attention
class Axial(Attention):
    """Softmax attention along the rows and along the columns of an image, summed.

    Args:
        axes: "both", or one of "rows" and "columns" alone.
    """

    paper = "Ho 2019"
    cost = "N(R+C)D"
    exempt_from = ("permutation",)
    needs_grid = True
    per_head = False

    def __init__(self, hidden_size: int, num_heads: int, *, axes: str = "both", **common):
        check_choice("axes", axes, ("both", "rows", "columns"))
        self.axes = ("rows", "columns") if axes == "both" else (axes,)  # before super(), which builds the projections
        super().__init__(hidden_size, num_heads, **common)

    def build_projections(self, bias, output_bias):
        inner = len(self.axes) * self.num_heads * self.head_dim
        self.q_proj = linear(self.hidden_size, inner, bias)
        self.k_proj = linear(self.hidden_size, inner, bias)
        self.v_proj = linear(self.hidden_size, inner, bias)
        self.o_proj = linear(inner, self.hidden_size, output_bias)

    def project(self, hidden_states):
        """(B, N, d) -> q, k, v (B, axes·H, N, D)"""
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        return tuple(p(hidden_states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))

    def attend(self, q, k, v, key_mask=None, position_ids=None, grid=None):
        """q, k, v (B, axes·H, N, D) -> (B, axes·H, N, D)"""
        dropout = self.dropout if self.training else 0.0
        outputs = []
        for axis, *qkv in zip(self.axes, *(x.split(self.num_heads, 1) for x in (q, k, v)), strict=True):
            mask = None if key_mask is None else _lines(key_mask[:, None, :, None], axis, grid)[:, 0, :, 0]
            output = softmax_attention(*(_lines(x, axis, grid) for x in qkv), key_mask=mask, dropout=dropout)
            output = output.unflatten(0, (q.shape[0], -1)).transpose(1, 2)  # (B, H, lines, length, D)
            outputs.append((output if axis == "rows" else output.transpose(2, 3)).flatten(2, 3))
        return torch.cat(outputs, 1)

    def naive(self, hidden_states, key_mask=None, position_ids=None, grid=None):
        """(B, N, d) -> (B, N, d)"""
        cell = torch.arange(hidden_states.shape[1], device=hidden_states.device)
        line = {"rows": cell // grid[1], "columns": cell % grid[1]}
        q, k, v = (x.unflatten(1, (len(self.axes), -1)) for x in self.project(hidden_states))  # (B, axes, H, N, D)
        outputs = []
        for n, axis in enumerate(self.axes):
            allowed = line[axis][:, None] == line[axis]  # (N, N)
            if key_mask is not None:
                allowed = allowed & key_mask[:, None, None, :]
            logits = q[:, n] @ zero_masked(k[:, n], key_mask).mT * self.head_dim**-0.5
            outputs.append(masked_softmax(logits, allowed) @ zero_masked(v[:, n], key_mask))
        return self.merge_heads(torch.cat(outputs, 1))


def _lines(x: Tensor, axis: str, grid: tuple[int, int]) -> Tensor:
    """(B, H, N, D) -> (B·lines, H, tokens of a line, D)"""
    x = x.unflatten(2, grid)
    return (x if axis == "rows" else x.transpose(2, 3)).transpose(1, 2).flatten(0, 1)
