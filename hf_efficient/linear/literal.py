"""Linear attention as a formula over an N×N matrix: what the fast forms are held to."""

import math

from torch import Tensor


def literal_weights(phi_q: Tensor, phi_k: Tensor, allowed: Tensor | None = None, eps: float = 0.0) -> Tensor:
    """A_ij = φ(q_i)·φ(k_j) / Σ_j' φ(q_i)·φ(k_j'): features (B, H, N, F) and (B, H, M, F) -> (B, H, N, M).

    `allowed`, broadcastable to that, says which key a query sees; None = all.
    """
    return row_normalise(phi_q @ phi_k.mT, allowed, eps)


def row_normalise(scores: Tensor, allowed: Tensor | None, eps: float = 0.0) -> Tensor:
    """Scores (B, H, S, N) over the sum of what each row is allowed to see; 0 where that is 0."""
    if allowed is not None:
        scores = scores.masked_fill(~allowed, 0)
    total = scores.sum(-1, keepdim=True) + eps
    return scores / total.masked_fill(total == 0, math.inf)
