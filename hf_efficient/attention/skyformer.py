"""Skyformer (Chen et al. 2021): the Gaussian kernel instead of softmax, through s landmarks (Nyström).

    o = C v,    C = κ(q, k) ≈ κ(q, S) (κ(S, S) + γI)⁻¹ κ(S, k),    κ(x, y) = exp(−‖x − y‖² / 2√D)

C is no symmetric matrix, but a corner of one, κ([q; k], [q; k]): the landmarks S are rows of [q; k], half of them
queries and half keys. Rows are not normalised: outputs grow with the number of tokens that are near. O(N·s·D + s³).

Of a sample's n real tokens, cut into s/2 segments, each segment gives the one in its middle, or, with
`landmarks="random"`, one drawn from (seed, layer); the published code draws from all tokens at every call. Padding is
in no segment, so it changes no real token. With as many landmarks as tokens and γ → 0 it is the kernel itself.

The inverse is solved for (`inverse="solve"`), or comes from the iterations of `nystrom`, which are matmuls only
(`"newton"`): with the matrix scaled by its row sums on both sides, no eigenvalue is above 1 and the identity will
do as a start (the published code starts from a maximum over the batch, and so lets batch mates change each other).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..linear.autocast import without_autocast
from .base import Attention, check_choice, check_positive
from .masking import zero_masked
from .registry import register_attention
from .softmax import squared_distance


@register_attention
class Skyformer(Attention):
    """Dropout acts on κ(S, k), the factor that has a weight per key.

    Args:
        num_landmarks: s, even.
        gamma: γ > 0.
        landmarks: "even" or "random".
        inverse: "solve" or "newton".
        newton_iterations: of the inverse.
        seed: of random landmarks, together with `layer_idx`.
    """

    paper = "Chen 2021"
    cost = "NsD"
    parameter_free = True
    exempt_from = ("row_sums", "permutation")

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_landmarks: int = 64,
        gamma: float = 0.1,
        landmarks: str = "even",
        inverse: str = "solve",
        newton_iterations: int = 6,
        seed: int = 0,
        **common,
    ):
        super().__init__(hidden_size, num_heads, **common)
        check_positive("num_landmarks", num_landmarks)
        if num_landmarks % 2:
            raise ValueError(f"num_landmarks={num_landmarks} must be even: half are queries, half are keys.")
        if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0 < gamma < math.inf:
            raise ValueError(f"gamma={gamma!r} must be a positive number.")
        check_choice("landmarks", landmarks, ("even", "random"))
        check_choice("inverse", inverse, ("solve", "newton"))
        check_positive("newton_iterations", newton_iterations)
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed={seed!r} must be a non-negative integer.")
        self.num_landmarks, self.gamma, self.landmarks, self.inverse = num_landmarks, gamma, landmarks, inverse
        self.newton_iterations, self.seed = newton_iterations, seed
        # Where in its segment a landmark is, of the queries and of the keys.
        self.register_buffer("places", torch.empty(2, num_landmarks // 2, dtype=torch.float32))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self):
        if self.landmarks == "even":
            self.places.fill_(0.5)
        else:
            generator = torch.Generator().manual_seed(self.seed * 65537 + self.layer_idx)
            self.places.copy_(torch.rand(self.places.shape, generator=generator, device="cpu"))

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        dtype, wide = v.dtype, torch.promote_types(v.dtype, torch.float32)
        with without_autocast(v):
            q, k, v = (zero_masked(x.to(wide), key_mask) for x in (q, k, v))
            index, filled = self.chosen(q, key_mask)  # (2, B, s/2), (B, s)
            S = torch.cat([_rows(x, at) for x, at in zip((q, k), index, strict=True)], 2)  # (B, H, s, D)
            mask = filled[:, None, :, None]
            seen = self.kernel(S, k)  # (B, H, s, N)
            if self.training and self.dropout:
                seen = F.dropout(seen, self.dropout)
            inner = self.solve(self.kernel(S, S) * mask * mask.mT, (seen @ v) * mask)  # masked values are 0
            output = (self.kernel(q, S) * mask.mT) @ inner
        return output.to(dtype)

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        with without_autocast(q):
            q, k = zero_masked(q.to(wide), key_mask), zero_masked(k.to(wide), key_mask)
            index, filled = self.chosen(q, key_mask)
            pick = F.one_hot(index, q.shape[2]).to(q) * filled.view(-1, 2, index.shape[2]).transpose(0, 1).unsqueeze(3)
            S = torch.cat([pick[0].unsqueeze(1) @ q, pick[1].unsqueeze(1) @ k], 2)
            q = q if rows is None else q[:, :, rows]
            left, middle, right = (
                torch.exp(-(x.unsqueeze(3) - y.unsqueeze(2)).square().sum(-1) / (2 * self.head_dim**0.5))
                for x, y in ((q, S), (S, S), (S, k))
            )
            mask = filled[:, None, :, None].to(q)
            identity = torch.eye(S.shape[2], device=q.device, dtype=q.dtype)
            inverse = self.solve(middle * mask * mask.mT, identity.expand_as(middle))
            matrix = (left * mask.mT) @ inverse @ (right * mask)
        return (matrix if key_mask is None else matrix.masked_fill(~key_mask[:, None, None], 0)).to(dtype)

    def kernel(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(squared_distance(x, y).clamp_min(0) * (-0.5 * self.head_dim**-0.5))

    def chosen(self, x: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The tokens that are landmarks (2, B, s/2), and which of all s there really are (B, s)."""
        batch, _, length, _ = x.shape
        count = min(self.num_landmarks // 2, length)
        t = torch.arange(count, device=x.device)
        real = t.new_full((batch, 1), length) if key_mask is None else key_mask.sum(1, keepdim=True)
        segments = real.clamp(1, count)  # never more than tokens
        start, stop = t * real // segments, (t + 1) * real // segments  # (B, s/2)
        rank = start + (self.places[:, None, :count] * (stop - start)).long()
        rank = rank.clamp_max((real - 1).clamp_min(0))
        if key_mask is not None:
            order = key_mask.logical_not().to(torch.uint8).argsort(dim=1, stable=True)  # real tokens first
            rank = order.expand(2, -1, -1).gather(2, rank)
        filled = (t < segments) & (real > 0)
        return rank, filled.repeat(1, 2)

    def solve(self, K: Tensor, y: Tensor) -> Tensor:
        """(K + γI)⁻¹ y, for K (B, H, s, s) and y (B, H, s, ·)"""
        identity = torch.eye(K.shape[-1], device=K.device, dtype=K.dtype)
        K = K + self.gamma * identity
        if self.inverse == "solve":
            return torch.linalg.solve_ex(K, y).result  # `solve` would wait for the device, to see whether it could
        scale = K.sum(-1, keepdim=True).rsqrt()
        K, Z = K * scale * scale.mT, identity
        for _ in range(self.newton_iterations):
            KZ = K @ Z
            Z = Z @ (13 * identity - KZ @ (15 * identity - KZ @ (7 * identity - KZ))) / 4
        return scale * (Z @ (scale * y))


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """(B, H, N, D) at (B, s) -> (B, H, s, D)"""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
