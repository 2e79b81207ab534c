"""An image as tokens (Dosovitskiy et al. 2021): CLS, then one token per patch, each with the embedding of its place.

Patches may be dropped before anything is computed of them: only the pixels of the chosen ones are gathered and
projected, and they keep the position embeddings of where they stood. Names of weights are those of transformers' ViT.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from ..attention.base import check_tensor
from ..attention.bypass import can_bypass
from ..attention.position_table import resample_positions


class EmbeddedImage(NamedTuple):
    hidden_states: Tensor  # (B, N, d)
    position_ids: Tensor | None  # (B, N): where the tokens stood, if some were dropped
    grid: tuple[int, int]  # rows and columns of patches in the whole image


class PatchEmbeddings(nn.Module):
    """Patches of p x p pixels, each through one linear map."""

    overlaps = False  # whether tokens know of their neighbours' pixels

    def __init__(self, patch_size: int, num_channels: int, hidden_size: int):
        super().__init__()
        self.patch_size, self.num_channels = patch_size, num_channels
        self.projection = nn.Conv2d(num_channels, hidden_size, kernel_size=patch_size, stride=patch_size)

    def forward(self, pixel_values: Tensor, patch_indices: Tensor | None = None) -> Tensor:
        """(B, C, H, W), and which patches (B, k) -> (B, n or k, d)"""
        if patch_indices is None:
            return self.projection(pixel_values).flatten(2).mT
        patches = gather_patches(pixel_values, self.patch_size, patch_indices)  # (B, k, C, p, p)
        if can_bypass(self.projection, nn.Conv2d):
            return F.linear(patches.flatten(2), self.projection.weight.flatten(1), self.projection.bias)
        return self.projection(patches.flatten(0, 1)).flatten(1).unflatten(0, patches.shape[:2])


def gather_patches(pixel_values: Tensor, patch_size: int, patch_indices: Tensor | None = None) -> Tensor:
    """The pixels of all patches, row by row, or of `patch_indices` (B, k): (B, C, H, W) -> (B, n or k, C, p, p)"""
    tiles = pixel_values.unflatten(3, (-1, patch_size)).unflatten(2, (-1, patch_size))  # (B, C, h, p, w, p)
    tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, n, C, p, p)
    if patch_indices is None:
        return tiles
    # Copying all patches and then whole rows of memory is three times as fast as indexing their scattered pixels.
    return take_tokens(tiles, patch_indices)


def take_tokens(tokens: Tensor, indices: Tensor) -> Tensor:
    """(B, n, ...) at (B, k) -> (B, k, ...)"""
    batch, count = tokens.shape[:2]
    first = torch.arange(batch, device=tokens.device).unsqueeze(1) * count
    return tokens.flatten(0, 1).index_select(0, (first + indices).flatten()).unflatten(0, (batch, -1))


def join_patches(patches: Tensor, grid: tuple[int, int]) -> Tensor:
    """All patches back in their places: (B, n, C, p, p) -> (B, C, H, W)"""
    return patches.unflatten(1, grid).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def blank_patches(pixel_values: Tensor, patch_size: int, masked: Tensor) -> Tensor:
    """The mean colour, 0, in place of masked patches (B, n): (B, C, H, W) -> (B, C, H, W)"""
    grid = tuple(size // patch_size for size in pixel_values.shape[2:])
    pixels = masked.bool().view(-1, 1, *grid).repeat_interleave(patch_size, 2).repeat_interleave(patch_size, 3)
    return pixel_values.masked_fill(pixels, 0)


class ImageEmbeddings(nn.Module):
    """
    Args:
        image_size: rows and columns of pixels that the position embeddings are made for.
        use_cls_token: put a learned token before the patches.
        use_mask_token: own an embedding that stands for masked patches.
        stem: makes tokens of patches (`stem.py`); by default `PatchEmbeddings`.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: int,
        num_channels: int,
        hidden_size: int,
        dropout: float = 0.0,
        use_cls_token: bool = True,
        use_mask_token: bool = False,
        initializer_range: float = 0.02,
        stem: nn.Module | None = None,
    ):
        super().__init__()
        self.image_size, self.initializer_range = tuple(image_size), initializer_range
        self.grid = (image_size[0] // patch_size, image_size[1] // patch_size)
        self.num_prefix_tokens = int(use_cls_token)
        self.cls_token = nn.Parameter(torch.empty(1, 1, hidden_size)) if use_cls_token else None
        self.mask_token = nn.Parameter(torch.empty(1, 1, hidden_size)) if use_mask_token else None
        self.patch_embeddings = stem or PatchEmbeddings(patch_size, num_channels, hidden_size)
        positions = self.num_prefix_tokens + self.grid[0] * self.grid[1]
        self.position_embeddings = nn.Parameter(torch.empty(1, positions, hidden_size))
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.cls_token, self.mask_token, self.position_embeddings):
            if parameter is not None:
                init.trunc_normal_(parameter, std=self.initializer_range)

    def forward(
        self,
        pixel_values: Tensor,
        patch_indices: Tensor | None = None,
        bool_masked_pos: Tensor | None = None,
        interpolate_pos_encoding: bool = False,
    ) -> EmbeddedImage:
        """pixel_values (B, C, H, W), patch_indices (B, k), bool_masked_pos (B, n) of all patches"""
        grid = self.check_image(pixel_values, interpolate_pos_encoding)
        if bool_masked_pos is not None:
            self.check_mask(bool_masked_pos, (pixel_values.shape[0], grid[0] * grid[1]))
            if self.patch_embeddings.overlaps:  # neighbours must not know what is to be predicted
                pixel_values = blank_patches(pixel_values, self.patch_embeddings.patch_size, bool_masked_pos)
        hidden_states = self.patch_embeddings(pixel_values, patch_indices)  # (B, n or k, d)
        if bool_masked_pos is not None:
            hidden_states = self.mask(hidden_states, patch_indices, bool_masked_pos)
        positions = self.position_embeddings
        if grid != self.grid:
            positions = resample_positions(positions, 1, self.grid, grid, self.num_prefix_tokens)
        prefix, patches = positions.to(hidden_states.dtype).tensor_split([self.num_prefix_tokens], 1)
        position_ids = None
        if patch_indices is not None:
            patches = patches.squeeze(0)[patch_indices]  # (B, k, d)
            position_ids = patch_indices + self.num_prefix_tokens
        hidden_states = hidden_states + patches
        if self.cls_token is not None:
            cls = (self.cls_token + prefix).to(hidden_states.dtype).expand(hidden_states.shape[0], -1, -1)
            hidden_states = torch.cat([cls, hidden_states], 1)
            if position_ids is not None:
                position_ids = F.pad(position_ids, (1, 0))
        return EmbeddedImage(self.dropout(hidden_states), position_ids, grid)

    def check_image(self, pixel_values: Tensor, interpolate_pos_encoding: bool) -> tuple[int, int]:
        """Raises for images that don't fit; returns rows and columns of patches."""
        check_tensor("pixel_values", pixel_values)
        channels, patch = self.patch_embeddings.num_channels, self.patch_embeddings.patch_size
        if pixel_values.dim() != 4 or pixel_values.shape[1] != channels:
            raise ValueError(
                f"pixel_values must be (batch, {channels}, height, width), as num_channels={channels}; "
                f"got {tuple(pixel_values.shape)}."
            )
        if not pixel_values.shape[0]:
            raise ValueError(f"pixel_values {tuple(pixel_values.shape)} is empty: at least one image is needed.")
        size = tuple(pixel_values.shape[2:])
        if size != self.image_size and not interpolate_pos_encoding:
            raise ValueError(
                f"pixel_values are {size[0]}x{size[1]} pixels, but image_size is {self.image_size[0]}x"
                f"{self.image_size[1]}: resize them, or pass interpolate_pos_encoding=True."
            )
        if size[0] % patch or size[1] % patch or not all(size):
            raise ValueError(f"pixel_values are {size[0]}x{size[1]} pixels, no multiple of patch_size={patch}.")
        return size[0] // patch, size[1] // patch

    def check_mask(self, masked: Tensor, shape: tuple[int, int]) -> None:
        check_tensor("bool_masked_pos", masked)
        if self.mask_token is None:
            raise ValueError("bool_masked_pos needs a model with a mask token: build it with use_mask_token=True.")
        if masked.shape != shape:
            raise ValueError(f"bool_masked_pos must be (batch, patches) = {shape}, got {tuple(masked.shape)}.")

    def mask(self, hidden_states: Tensor, patch_indices: Tensor | None, masked: Tensor) -> Tensor:
        """The mask token in place of masked patches."""
        masked = masked.bool() if patch_indices is None else masked.bool().gather(1, patch_indices)
        return torch.where(masked.unsqueeze(-1), self.mask_token.to(hidden_states.dtype), hidden_states)
