"""Pixel and patch sampling (Mehta & Rastegari 2022, appendix E): transformer layers for a part of the tokens.

Neighbouring pixels say much the same. So layers may run on m of the M pixels of every patch, or on n of the N patches:

    y = x + spread(layers(x_chosen) − x_chosen)

"uniform"   every s-th pixel of a patch, or every s-th patch of the map, in both directions; what the layers changed is
            spread to the places between by bilinear interpolation.
"random"    as many, drawn anew for each batch in training and evenly spaced in evaluation.
"top"       those of largest L2 norm.

With the last two, what is not chosen passes by as it is. The paper says which tokens are chosen, not how the result
comes back; to spread changes and not results loses no detail of what was left out. FLOPs fall, but copies of tokens
cost time: the paper measured no gain on a phone.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...layers.patch_selection import top_indices
from .tokens import fold, unfold


class ChosenTokens(NamedTuple):
    tokens: Tensor  # (B, m, n, d)
    grid: tuple[int, int]  # rows and columns of patches, without those between
    index: Tensor | None = None  # (B, m, n, d): which pixels or patches they are, unless every s-th
    position_ids: Tensor | None = None  # (B, n): which patches, if they are on no grid


class TokenSampling(nn.Module):
    """
    Args:
        of: "pixels" of each patch, or "patches".
        method: "uniform", "random" or "top".
        stride: s; 1/s² of the tokens are chosen.
        patch: rows and columns of pixels in a patch; multiples of s if pixels are chosen.
    """

    def __init__(self, of: str, method: str, stride: int, patch: tuple[int, int]):
        super().__init__()
        self.of, self.method, self.stride, self.patch = of, method, stride, patch
        self.dim = 1 if of == "pixels" else 2  # of tokens (B, P, N, d)
        self.chosen_patch = tuple(side // stride for side in patch) if of == "pixels" else patch

    def choose(self, tokens: Tensor, grid: tuple[int, int]) -> ChosenTokens:
        """Of (B, P, N, d)"""
        every = slice(None, None, self.stride)
        if self.method == "uniform" and self.of == "pixels":
            return ChosenTokens(tokens.unflatten(1, self.patch)[:, every, every].flatten(1, 2), grid)
        if self.method == "uniform":
            patches = tokens.unflatten(2, grid)[:, :, every, every]
            return ChosenTokens(patches.flatten(2, 3), tuple(patches.shape[2:4]))
        batch, places, count, width = tokens.shape
        if self.of == "pixels":
            picked = self.pick(tokens.transpose(1, 2), self.chosen_patch[0] * self.chosen_patch[1])  # (B, N, m)
            index = picked.mT.unsqueeze(-1).expand(-1, -1, -1, width)
            return ChosenTokens(tokens.gather(1, index), grid, index)
        chosen = -(-grid[0] // self.stride) * -(-grid[1] // self.stride)
        picked = self.pick(tokens.transpose(1, 2).flatten(2).unsqueeze(1), chosen)  # (B, 1, n)
        index = picked.unsqueeze(-1).expand(-1, places, -1, width)
        return ChosenTokens(tokens.gather(2, index), grid, index, picked.squeeze(1))

    @torch.no_grad()
    def pick(self, candidates: Tensor, count: int) -> Tensor:
        """Some of each group: (B, groups, candidates, d) -> (B, groups, count), ascending"""
        batch, groups, length, _ = candidates.shape
        if self.method == "random" and not self.training:
            even = torch.arange(count, device=candidates.device) * length // count
            return even.expand(batch, groups, count)
        if self.method == "random":
            scores = torch.rand(batch, groups, length, device=candidates.device)
        else:
            scores = candidates.to(torch.promote_types(candidates.dtype, torch.float32)).square().sum(-1)
        return top_indices(scores.flatten(0, 1), count).unflatten(0, (batch, groups))

    def spread(self, tokens: Tensor, grid: tuple[int, int], chosen: ChosenTokens, results: Tensor) -> Tensor:
        """All tokens (B, P, N, d), changed by what the layers made of the chosen ones, (B, m, n, d)."""
        change = results - chosen.tokens
        if chosen.index is not None:
            return tokens.scatter_add(self.dim, chosen.index, change)
        if self.of == "pixels":
            size = tuple(rows * side for rows, side in zip(grid, self.patch, strict=True))
            small = fold(change, grid, self.chosen_patch)  # (B, d, H / s, W / s)
            return tokens + unfold(enlarge(small, self.stride, size), self.patch)[0]
        small = change.flatten(0, 1).mT.unflatten(2, chosen.grid)  # (B · P, d, rows, columns)
        return tokens + enlarge(small, self.stride, grid).flatten(2).mT.view_as(tokens)

    def extra_repr(self) -> str:
        return f"of={self.of!r}, method={self.method!r}, stride={self.stride}"


def enlarge(samples: Tensor, stride: int, size: tuple[int, int]) -> Tensor:
    """A map (B, d, h, w) of every `stride`-th place -> (B, d, *size), bilinear between them, the last ones repeated"""
    samples = torch.cat([samples, samples[:, :, -1:]], 2)
    samples = torch.cat([samples, samples[..., -1:]], 3)
    reach = [(side - 1) * stride + 1 for side in samples.shape[2:]]
    return F.interpolate(samples, reach, mode="bilinear", align_corners=True)[:, :, : size[0], : size[1]]
