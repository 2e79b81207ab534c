"""What linear attention remembers of the tokens it has seen: as much after a million as after one."""

import torch
from torch import Tensor

from .features import FeatureMap

State = dict[str, Tensor]


def initial_state(
    batch_size: int,
    num_heads: int,
    num_features: int,
    value_dim: int,
    feature_map: FeatureMap | None = None,
    normalise: bool = True,
    device=None,
    dtype: torch.dtype = torch.float32,
) -> State:
    """No token seen: S (B, H, F, Dv + 1) with z as its last column, and c (B, H, F) where a maximum is needed."""
    shape = (batch_size, num_heads, num_features)
    state = {"S": torch.zeros(*shape, value_dim + normalise, device=device, dtype=dtype)}
    if feature_map is not None and feature_map.needs_maximum:
        state["c"] = torch.full(shape, feature_map.log2_floor, device=device, dtype=dtype)
    return state
