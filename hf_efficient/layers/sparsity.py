"""A regulariser that makes attention sparse: the mean over heads and query rows A_i, before dropout, of

    entropy   H(A_i) / log n_i
    hoyer     1 − (√n_i − ‖A_i‖₁ / ‖A_i‖₂) / (√n_i − 1)

with n_i the number of keys that causality and padding leave to row i. Both are 1 for a uniform row and 0 for a
one-hot one; training adds λ times the value (λ = 1e-3, say) to the loss. The L1 norm, which makes other things sparse,
is not offered: that of a softmax row is always 1.

A random sample of S query rows per layer and call is enough, and `Attention.weights` computes them alone: O(S·N·D), no
N×N tensor, and `attend` keeps its fused or linear form. Rows of mechanisms whose weights can be negative (Linformer,
Nyström) count by absolute value, divided by their sum.
"""

import torch
from torch import Tensor, nn

from ..attention.base import Attention, check_choice, check_positive
from ..attention.masking import allowed_keys, zero_masked


class AttentionSparsity(nn.Module):
    """What `Attention.forward` calls in training once it is its `sparsity`; the value goes to its output's `sparsity`.

    Args:
        kind: "entropy" or "hoyer".
        num_rows: S, query rows sampled per call.
    """

    def __init__(self, kind: str = "entropy", num_rows: int = 32):
        super().__init__()
        check_choice("kind", kind, ("entropy", "hoyer"))
        check_positive("num_rows", num_rows)
        self.kind, self.num_rows = kind, num_rows

    def forward(
        self,
        attention: Attention,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        **where,
    ) -> Tensor:
        """q (B, H, N, D), k (B, H, M, D), masks (B, N) and (B, M), True = real -> a scalar in [0, 1]"""
        length, device = q.shape[2], q.device
        draw = torch.arange if length <= self.num_rows else torch.randperm
        rows = draw(length, device=device)[: self.num_rows]
        weights = attention.weights(zero_masked(q, query_mask), k, key_mask=key_mask, rows=rows, **where)
        weights = weights.to(torch.promote_types(weights.dtype, torch.float32)).abs()  # (B, H, S, N)
        total = weights.sum(-1, keepdim=True)
        allowed = allowed_keys(k.shape[2], attention.causal, key_mask, rows, device)
        keys = total.new_full((), k.shape[2]) if allowed is None else allowed.sum(-1).to(total.dtype)  # (B, 1, S)
        counted = (keys >= 2) & (total.squeeze(-1) > 0)  # (B, H, S)
        if query_mask is not None:
            counted = counted & query_mask[:, None, rows]
        values = self.measure(weights / total.clamp_min(torch.finfo(total.dtype).tiny), keys.clamp_min(2))
        return torch.where(counted, values, 0).sum() / counted.sum().clamp_min(1)

    def measure(self, p: Tensor, n: Tensor) -> Tensor:
        """Rows p (..., N) that sum to 1 over n (...) keys -> (...)"""
        tiny = torch.finfo(p.dtype).tiny  # below it a gradient would be infinite, though its weight is 0
        if self.kind == "entropy":
            return torch.special.entr(p.clamp_min(tiny)).sum(-1) / n.log()
        return 1 - (n.sqrt() - p.square().sum(-1).clamp_min(tiny).rsqrt()) / (n.sqrt() - 1)

    def extra_repr(self) -> str:
        return f"kind={self.kind!r}, num_rows={self.num_rows}"


def attach_sparsity(model: nn.Module, kind: str = "entropy", num_rows: int = 32) -> None:
    """Makes every Attention in a model report its sparsity in training."""
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    if not attentions:
        raise ValueError(f"{type(model).__name__} contains no Attention to make sparse.")
    for attention in attentions:
        if not attention.has_weights():
            attention.refuse("a sparsity regulariser", "has_weights")
    for attention in attentions:
        attention.sparsity = AttentionSparsity(kind, num_rows)
