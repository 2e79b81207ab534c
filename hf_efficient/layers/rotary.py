"""Rotary positions (Su et al. 2021, "RoFormer"): pairs of channels are turned by angles that grow with the position.

    (x_{2i}, x_{2i+1}) at position p, read as a complex number, times e^{i p ω_i},    ω_i = θ^{−2i/D},  i = 0 … D/2 − 1

The product of a turned query and a turned key depends on the distance of their positions only, and norms stay as they
are, so kernels of q·k, ‖q‖ and ‖k‖ see relative positions. Positions may be fractional or negative.
"""

import torch
from torch import Tensor

from ..attention.masking import token_positions


class RotaryTable:
    """The rotations of a fixed list of positions, computed in float64 and kept per dtype and device.

    No buffers: nothing to save, to cast to half precision, or to come back empty from a meta device.
    """

    def __init__(self, positions: Tensor, head_dim: int, theta: float):
        channels = torch.arange(0, head_dim, 2, device="cpu", dtype=torch.float64)
        angles = positions[:, None, None].to("cpu", torch.float64) * theta ** (-channels / head_dim)
        self.exact = torch.stack([angles.cos(), angles.sin()], -1)  # (P, 1, D/2, 2)
        self.kept: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def on(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(P, 1, D/2) complex, of float32 at least; the 1 stands for the heads. Where a graph is exported it is
        (P, 1, D/2, 2): ONNX has no complex numbers."""
        wide = torch.promote_types(dtype, torch.float32)
        if torch.compiler.is_exporting():
            return self.exact.to(wide).to(device)
        if (device, dtype) not in self.kept:
            with torch.inference_mode(False):
                self.kept[device, dtype] = torch.view_as_complex(self.exact.to(wide)).to(
                    device
                )  # it may know no float64
        return self.kept[device, dtype]


class RotaryPositions:
    """Turns the heads' queries and keys of `Attention.rotary` by their tokens' positions, 0 to max_length − 1."""

    def __init__(self, max_length: int, head_dim: int, theta: float):
        self.table = RotaryTable(torch.arange(max_length, device="cpu"), head_dim, theta)

    def __call__(self, q: Tensor, k: Tensor, key_mask=None, position_ids=None) -> tuple[Tensor, Tensor]:
        """q, k (B, H, N, D) -> the same, turned. Without positions they are counted over real tokens."""
        rotation, (batch, _, length, _) = self.table.on(q.device, q.dtype), q.shape
        if key_mask is None and position_ids is None:
            rotation = rotation[:length]
        else:
            rotation = rotation[token_positions(position_ids, key_mask, batch, length, q.device)]  # (B, N, 1, D/2)
        return tuple(rotate(x.transpose(1, 2).contiguous(), rotation).transpose(1, 2) for x in (q, k))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """x (B, N, H, D), turned by the rotations (N, 1, D/2), or (B, N, 1, D/2), of its tokens."""
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    if rotation.is_complex():
        turned = torch.view_as_real(torch.view_as_complex(wide.view(*x.shape[:-1], -1, 2)) * rotation).view(x.shape)
    else:
        (a, b), (cos, sin) = wide.unflatten(-1, (-1, 2)).unbind(-1), rotation.unbind(-1)
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return turned if turned.dtype == x.dtype else turned.to(x.dtype)
