"""Who sees whom: padding, causality, and the positions that follow from them. key_mask (B, N), True = real token."""

import torch
from torch import Tensor


def zero_masked(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """x (B, H, N, D) with zeros at masked tokens, whatever stood there."""
    return x if key_mask is None else x.masked_fill(~key_mask[:, None, :, None], 0)


def take_tokens(x: Tensor, index: Tensor) -> Tensor:
    """x (B, H, N, D), index (B, S) or (1, S) into N -> (B, H, S, D), all heads of a token at a time."""
    batch, heads, length, width = x.shape
    index = index + length * torch.arange(batch, device=x.device)[:, None]  # (B, S)
    x = x.transpose(1, 2).reshape(-1, heads * width).index_select(0, index.flatten())
    return x.view(batch, -1, heads, width).transpose(1, 2)


def allowed_keys(
    length: int, causal: bool, key_mask: Tensor | None, rows: Tensor | None = None, device=None
) -> Tensor | None:
    """Which of `length` keys each query row sees: bool, broadcastable to (B, H, S, N); None = all."""
    allowed = None
    if causal:
        i = torch.arange(length, device=device) if rows is None else rows
        allowed = (torch.arange(length, device=device) <= i[:, None])[None, None]  # (1, 1, S, N)
    if key_mask is not None:
        keys = key_mask[:, None, None, :]
        allowed = keys if allowed is None else allowed & keys
    return allowed


def masked_softmax(logits: Tensor, allowed: Tensor | None, dim: int = -1) -> Tensor:
    """Softmax over what is allowed; a row that sees nothing is 0, not NaN."""
    if allowed is None:
        return logits.softmax(dim)
    return logits.masked_fill(~allowed, -torch.inf).softmax(dim).masked_fill(~allowed, 0)


def token_positions(position_ids: Tensor | None, key_mask: Tensor | None, batch: int, length: int, device) -> Tensor:
    """(B, N): as given, else counted over real tokens, so that padding on either side changes no position."""
    if position_ids is not None:
        return position_ids
    if key_mask is not None:
        return (key_mask.long().cumsum(-1) - 1).clamp_min(0)
    return torch.arange(length, device=device).expand(batch, length)
