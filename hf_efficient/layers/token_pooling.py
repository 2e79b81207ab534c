"""Token Pooling (Marin et al. 2021): between two blocks, N tokens become K centres of clusters.

    minimise Σ_j w_j min_t ‖x_j − c_t‖²,    w_j = Σ_{h,i} A^h_ij

with A the attention that the tokens come from: what many queries looked at is kept apart. Weighted Lloyd iterations
start from the K most significant tokens. A K-means centre is the weighted mean of its cluster; a K-medoids centre is
the member that serves the cluster best, which for squared distances is the one nearest to that mean. Who belongs
where is not differentiated; centres are. O(K·N·d) per iteration.

Mechanisms without an N×N matrix have no w: all tokens then count the same. Tokens of equal w are chosen evenly over
the ranking by distance from the tokens' mean, so that the set of centres does not depend on the order of the tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..attention.base import Attention, check_choice, check_positive
from ..linear.autocast import without_autocast
from .patch_selection import top_indices


class PooledTokens(NamedTuple):
    hidden_states: Tensor  # (B, P + K, d): the prefix, then the centres in the order of the tokens they started from
    assignments: Tensor  # (B, N − P): each token's centre, −1 for padding
    seeds: Tensor  # (B, K), ascending: the tokens after the prefix that the centres started from
    key_mask: Tensor | None = None  # (B, P + K), False where there were fewer than K tokens; with key_mask


class TokenPooling(nn.Module):
    """
    Args:
        num_tokens: K, or as a number with a point in (0, 1] the share ⌈ρN⌉ of the tokens after the prefix; inputs of
            fewer tokens keep those they have.
        method: "kmeans" or "kmedoids".
        iterations: of assigning tokens and moving centres.
        num_prefix_tokens: P tokens at the front (CLS) that are passed on as they are.
    """

    def __init__(
        self, num_tokens: int | float, method: str = "kmeans", iterations: int = 5, num_prefix_tokens: int = 1
    ):
        super().__init__()
        if not (isinstance(num_tokens, float) and 0 < num_tokens <= 1):
            check_positive("num_tokens", num_tokens)
        check_choice("method", method, ("kmeans", "kmedoids"))
        check_positive("iterations", iterations)
        if isinstance(num_prefix_tokens, bool) or not isinstance(num_prefix_tokens, int) or num_prefix_tokens < 0:
            raise ValueError(f"num_prefix_tokens={num_prefix_tokens!r} must be an integer of at least 0.")
        self.num_tokens, self.method, self.iterations = num_tokens, method, iterations
        self.num_prefix_tokens = num_prefix_tokens

    def forward(
        self, hidden_states: Tensor, weights: Tensor | None = None, key_mask: Tensor | None = None
    ) -> PooledTokens:
        """hidden_states (B, N, d); weights: attention (B, H, N, N), or significance (B, N), at least 0."""
        prefix, x = hidden_states.tensor_split([self.num_prefix_tokens], 1)
        if not x.shape[1]:
            raise ValueError(
                f"hidden_states {tuple(hidden_states.shape)} with num_prefix_tokens={self.num_prefix_tokens} "
                "leaves no token to pool."
            )
        w = self.significance(hidden_states, weights, key_mask)
        real = torch.ones_like(w, dtype=torch.bool) if key_mask is None else key_mask[:, self.num_prefix_tokens :]
        x, w = x.to(w.dtype).masked_fill(~real.unsqueeze(-1), 0), w.masked_fill(~real, 0)
        with without_autocast(x):
            # What all tokens have in common would drown their differences in rounding.
            shift = x.sum(1, keepdim=True) / real.sum(1).clamp_min(1)[:, None, None]
            x = (x - shift).masked_fill(~real.unsqueeze(-1), 0)
            seeds = select_seeds(x, w, real, self.count(x.shape[1]))  # (B, K)
            seeded = None if key_mask is None else real.gather(1, seeds)
            with torch.no_grad():
                centres = gather_tokens(x, seeds)
                for _ in range(self.iterations - 1):
                    centres = self.move(centres, x, w, real, assign(x, centres, seeded))
                assignments = assign(x, centres, seeded)
            centres = self.move(centres, x, w, real, assignments) + shift
        mask = None if key_mask is None else torch.cat([key_mask[:, : self.num_prefix_tokens], seeded], 1)
        pooled = torch.cat([prefix, centres.to(prefix.dtype)], 1)
        return PooledTokens(pooled, assignments.masked_fill(~real, -1), seeds, mask)

    def count(self, tokens: int) -> int:
        """K of so many tokens; a share in whole numbers: 0.1·30 = 3.0000000000000004 would be 4"""
        if isinstance(self.num_tokens, int):
            return min(self.num_tokens, tokens)
        return -(-tokens * round(self.num_tokens * 10**9) // 10**9)

    def significance(self, hidden_states: Tensor, weights: Tensor | None, key_mask: Tensor | None) -> Tensor:
        """w (B, N − P), of the tokens after the prefix"""
        batch, length = hidden_states.shape[:2]
        wide = torch.promote_types(hidden_states.dtype, torch.float32)
        if weights is None:
            w = hidden_states.new_ones(batch, length, dtype=wide)
        elif weights.dim() == 4 and weights.shape[0] == batch and weights.shape[2:] == (length, length):
            w = weights.to(wide)
            w = (w if key_mask is None else w.masked_fill(~key_mask[:, None, :, None], 0)).sum((1, 2))
        elif weights.shape == (batch, length):
            w = weights.to(wide)
        else:
            raise ValueError(
                f"weights must be attention (B, H, N, N) or significance (B, N) of hidden_states "
                f"{tuple(hidden_states.shape)}, got {tuple(weights.shape)}."
            )
        return w[:, self.num_prefix_tokens :]

    def move(self, centres: Tensor, x: Tensor, w: Tensor, real: Tensor, assignments: Tensor) -> Tensor:
        """Where the centres (B, K, d) of these clusters belong; that of an empty cluster stays."""
        batch, count, dim = centres.shape
        places = (assignments + count * torch.arange(batch, device=x.device).unsqueeze(1)).flatten()  # (B·N,)
        total = x.new_zeros(batch * count).index_add(0, places, w.flatten()).view(batch, count, 1)
        sums = x.new_zeros(batch * count, dim).index_add(0, places, (w.unsqueeze(-1) * x).flatten(0, 1))
        means = torch.where(total > 0, sums.view_as(centres) / total.masked_fill(total == 0, 1), centres)
        if self.method == "kmeans":
            return means
        members = assignments.unsqueeze(1) == torch.arange(centres.shape[1], device=x.device).unsqueeze(-1)
        members = members & real.unsqueeze(1)  # (B, K, N)
        close, norm = closeness(means, x).masked_fill(~members, -torch.inf), x.square().sum(-1)
        # Two members are equally near to their mean, and rounding must not choose: the one farther from 0 does.
        rounding = 100 * torch.finfo(x.dtype).eps * norm.amax(-1)[:, None, None]
        tied = close >= close.amax(-1, keepdim=True) - rounding
        medoids = norm.unsqueeze(1).where(tied & members, -torch.inf).argmax(-1)  # (B, K)
        return torch.where(members.any(-1, keepdim=True), gather_tokens(x, medoids), centres)

    def extra_repr(self) -> str:
        return f"num_tokens={self.num_tokens}, method={self.method!r}, iterations={self.iterations}"


def has_significance(attention: nn.Module) -> bool:
    """Whether its N×N matrix costs no more than the attention itself, and its rows are shares of 1."""
    quadratic = isinstance(attention, Attention) and attention.has_weights() and "N²" in attention.cost
    return quadratic and "row_sums" not in attention.exempt_from


@torch.no_grad()
def select_seeds(x: Tensor, w: Tensor, real: Tensor, K: int) -> Tensor:
    """The K most significant of tokens around 0, (B, K) ascending."""
    distance = x.square().sum(-1).masked_fill(~real, -1)  # padding comes last and moves no rank
    ranking = distance.argsort(dim=1, descending=True)
    golden = torch.arange(x.shape[1], device=x.device) * 2654435769 % 2**32  # multiples of 0.618…, modulo 1
    ranking = ranking[:, golden.argsort()]  # any first K of these are spread evenly
    significance = w.masked_fill(~real, -1).gather(1, ranking)
    return ranking.gather(1, top_indices(significance, K)).sort(1).values


def assign(x: Tensor, centres: Tensor, seeded: Tensor | None) -> Tensor:
    """x (B, N, d), centres (B, K, d) -> the nearest of those that are `seeded`, by default of all, (B, N)"""
    close = closeness(x, centres)
    close = close if seeded is None else close.masked_fill(~seeded.unsqueeze(1), -torch.inf)
    return close.max(-1).indices


def closeness(x: Tensor, y: Tensor) -> Tensor:
    """(B, N, d), (B, M, d) -> (B, N, M): largest where ‖x − y‖ is smallest; ‖x‖², the same for all y, is left out"""
    return torch.baddbmm(y.square().sum(-1).unsqueeze(1), x, y.mT, beta=-0.5)


def gather_tokens(x: Tensor, index: Tensor) -> Tensor:
    """x (B, N, d), index (B, K) -> (B, K, d)"""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
