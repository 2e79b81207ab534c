"""Tables that a mechanism learns per position: looking tokens up in them, and resampling them to a new image grid.

A token takes the entry of its position, not of its place in the tensor: shorter inputs use the first entries, dropped
patches leave theirs unused, padding on either side moves nothing.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .masking import token_positions


def table_positions(
    mechanism: str, max_length: int, batch: int, length: int, key_mask: Tensor | None, position_ids: Tensor | None
) -> Tensor | slice:
    """Where the tokens stand in a table of `max_length`: (B, N), or a slice where no index is needed."""
    if key_mask is None and position_ids is None:
        _check_range(mechanism, max_length, 0, length - 1)
        return slice(length)
    positions = token_positions(position_ids, key_mask, batch, length, None)
    if key_mask is not None:  # what stands at padding need not be a position at all
        positions = positions.masked_fill(~key_mask, 0)
    if positions.device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere the answer costs a sync
        _check_range(mechanism, max_length, *(x.item() for x in positions.aminmax()))
    return positions


def _check_range(mechanism: str, max_length: int, lowest: int, highest: int) -> None:
    if lowest < 0 or highest >= max_length:
        raise ValueError(
            f"'{mechanism}' attention has tables of max_length={max_length} positions, got position "
            f"{lowest if lowest < 0 else highest}: rebuild it with a larger max_length, or, for images of another "
            "size, resample its tables."
        )


def lookup(table: Tensor, positions: Tensor | slice, dim: int) -> Tensor:
    """The entries along `dim` at the positions: that of `table` sliced, or (B, ...) where each row has its own."""
    if isinstance(positions, slice):
        return table.narrow(dim, 0, positions.stop)
    entries = table.index_select(dim, positions.flatten())
    return entries.unflatten(dim, positions.shape).movedim(dim, 0)


def resample_positions(
    table: Tensor,
    dim: int,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    num_prefix_tokens: int = 1,
    keep_sum: bool = False,
) -> Tensor:
    """A table for `num_prefix_tokens` and the cells of a new grid, bicubic along `dim` like ViT position embeddings.

    The prefix stays as it is, entries beyond the old grid are left out. A table that tokens are summed with needs
    `keep_sum`: its cells are multiplied by N_old / N_new, so that more cells don't make a larger sum.
    """
    cells = old_grid[0] * old_grid[1]
    if table.shape[dim] < num_prefix_tokens + cells:
        raise ValueError(
            f"old_grid={tuple(old_grid)} and num_prefix_tokens={num_prefix_tokens} make {num_prefix_tokens + cells} "
            f"positions, but the table has {table.shape[dim]}."
        )
    entries = table.movedim(dim, -1)  # (..., positions)
    prefix, grid = entries.split_with_sizes(
        [num_prefix_tokens, cells, entries.shape[-1] - num_prefix_tokens - cells], -1
    )[:2]
    wide = torch.promote_types(grid.dtype, torch.float32)
    grid = F.interpolate(grid.reshape(1, -1, *old_grid).to(wide), size=tuple(new_grid), mode="bicubic")
    if keep_sum:
        grid = grid * (cells / (new_grid[0] * new_grid[1]))
    grid = grid.reshape(*prefix.shape[:-1], -1).to(table.dtype)
    return torch.cat([prefix, grid], -1).movedim(-1, dim).contiguous()
