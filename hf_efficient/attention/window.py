"""Window attention (Liu et al. 2021, "Swin"; version 2, Liu et al. 2022): tokens of an R × C grid, row by row.

    o_i = Σ_{j∈A(i)} softmax_j(score(q_i, k_j) + bias(Δy, Δx)) v_j

A(i): the cells of i's M × M window, (⌊(y − s)/M⌋, ⌊(x − s)/M⌋) alike, where s = ⌊M/2⌋ in a shifted layer and 0 in
others. Version 1: score = q·k / √D, and a learned bias per offset, ((2M−1)², H). Version 2: score = cos(q, k) / τ,
τ ≥ 0.01 learned per head, and an MLP of the log-spaced offset makes the bias. Cost O(N·M²·D).

Shifted windows are computed as Swin does: roll the map by −s, and let wrapped cells not see the others. Padding is
masked (in Swin it is not) and the windows are laid from the first real row and column, so padding on any side changes
no real cell; masked cells output 0; along an axis with no more than M real cells there is one window and no shift; by
default every other layer is shifted. A CLS token is not on the grid.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Attention, check_choice, check_positive
from .masking import masked_softmax, take_tokens, zero_masked
from .registry import register_attention


@register_attention
class Window(Attention):
    """Softmax attention within the windows of an image.

    Args:
        window: M.
        shift: whether this layer's windows are shifted; by default those of layers with an odd `layer_idx` are.
        version: 1 = Swin, 2 = Swin-v2.
    """

    paper = "Liu 2021"
    cost = "NM²D"
    exempt_from = ("permutation",)
    needs_grid = True

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        window: int = 7,
        shift: bool | None = None,
        version: int = 1,
        **common,
    ):
        super().__init__(hidden_size, num_heads, **common)
        check_positive("window", window)
        check_choice("shift", shift, (None, False, True))
        check_choice("version", version, (1, 2))
        shifted = self.layer_idx % 2 == 1 if shift is None else shift
        self.window, self.shift, self.version = window, window // 2 if shifted else 0, version
        if version == 1:
            self.position_bias = nn.Parameter(torch.empty((2 * window - 1) ** 2, num_heads))
        else:
            self.position_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, num_heads, bias=False))
            self.log_scale = nn.Parameter(torch.empty(num_heads))  # log 1/τ
        self.reset_parameters()

    def reset_parameters(self):
        if self.version == 1:
            nn.init.trunc_normal_(self.position_bias, std=0.02)
        else:
            nn.init.constant_(self.log_scale, math.log(10))
            for layer in self.position_mlp[::2]:
                nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(self.position_mlp[0].bias)

    def attend(self, q, k, v, key_mask=None, position_ids=None, grid=None):
        length = q.shape[2]
        real = q.new_ones(1, length, dtype=torch.bool) if key_mask is None else key_mask
        size = [min(self.window, n) for n in grid]
        count = [-(-n // m) for n, m in zip(grid, size, strict=True)]
        windows, cells = math.prod(count), math.prod(size)
        window = cell = part = 0
        for a, n, m in zip(_coordinates(grid, q.device), count, size, strict=True):
            first, shift = self._placement(a, real)
            rolled = (a - first - shift) % (n * m)
            window, cell, part = window * n + rolled // m, cell * m + rolled % m, part * 2 + (a < first + shift)
        slot = window * cells + cell  # (B, N): where every token goes
        token = torch.arange(length, device=q.device).expand_as(slot).masked_fill(~real, -1)
        token = slot.new_full((slot.shape[0], windows * cells), -1).scatter_(1, slot, token)  # what is there
        filled, token = (token >= 0).view(-1, windows, 1, 1, cells), token.clamp_min(0)
        part = part.gather(1, token).view_as(filled)

        q, k, v = (take_tokens(zero_masked(x, key_mask), token).unflatten(2, (windows, cells)) for x in (q, k, v))
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, n, H, m, D)
        y, x = _coordinates(size, q.device)
        logits = self._scores(q, k) + self._bias(y[:, None] - y, x[:, None] - x)  # (B, n, H, m, m)
        weights = masked_softmax(logits, filled & (part == part.mT)).to(v.dtype)
        output = F.dropout(weights, self.dropout, self.training) @ v
        return zero_masked(take_tokens(output.transpose(1, 2).flatten(2, 3), slot), key_mask)

    def weights(self, q, k, key_mask=None, position_ids=None, grid=None, rows=None):
        length = q.shape[2]
        i = torch.arange(length, device=q.device) if rows is None else rows
        real = q.new_ones(1, length, dtype=torch.bool) if key_mask is None else key_mask
        allowed, offsets = real[:, i, None] & real.unsqueeze(1), []  # (B, S, N)
        for a in _coordinates(grid, q.device):
            first, shift = self._placement(a, real)
            region = torch.div(a - first - shift, self.window, rounding_mode="floor")  # (B, N)
            allowed = allowed & (region[:, i, None] == region.unsqueeze(1))
            offsets.append((a[i, None] - a).clamp(1 - self.window, self.window - 1))  # others are masked
        logits = self._scores(q[:, :, i], zero_masked(k, key_mask)) + self._bias(*offsets)
        return masked_softmax(logits, allowed.unsqueeze(1)).to(q.dtype)

    def naive(self, q, k, v, key_mask=None, position_ids=None, grid=None):
        return self.weights(q, k, key_mask, position_ids, grid) @ zero_masked(v, key_mask)

    def _placement(self, coordinate: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Along one axis: where the real cells of a sample begin, and by how much its windows are shifted, (B, 1)."""
        first = torch.where(real, coordinate, coordinate[-1] + 1).amin(1, keepdim=True)
        last = torch.where(real, coordinate, -1).amax(1, keepdim=True)
        return first, torch.where(last - first < self.window, 0, self.shift)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        if self.version == 1:
            return q @ k.mT * self.head_dim**-0.5
        scale = self.log_scale.clamp(max=math.log(100)).exp()[:, None, None]
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * scale

    def _bias(self, dy: Tensor, dx: Tensor) -> Tensor:
        """Offsets (S, T) -> (H, S, T)"""
        reach = self.window - 1
        if self.version == 1:
            table = self.position_bias
        else:
            steps = torch.arange(-reach, reach + 1, device=dy.device, dtype=self.log_scale.dtype)
            steps = steps.sign() * torch.log2(1 + 8 * steps.abs() / max(reach, 1)) / 3
            table = 16 * self.position_mlp(torch.cartesian_prod(steps, steps)).sigmoid()
        return table[(dy + reach) * (2 * reach + 1) + dx + reach].movedim(-1, 0)


def _coordinates(grid, device) -> tuple[Tensor, Tensor]:
    """y and x (N,) of the cells of a grid"""
    cell = torch.arange(grid[0] * grid[1], device=device)
    return cell // grid[1], cell % grid[1]
