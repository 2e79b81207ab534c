"""YOSO (Zeng et al. 2021, "You Only Sample (Almost) Once"): how often queries and keys fall into the same bucket.

    o = y / ‖y‖,    y_i = Σ_j B_ij v_j,    B_ij = the share of m hashes in which q_i and k_j have the same code

A code is the signs of x on τ random hyperplanes, so that E B_ij = w_ij = (1 − arccos(q̂_i·k̂_j)/π)^τ with x̂ = x/‖x‖.
Values are added up in 2^τ buckets and read from there: O(N·m·(τD + D)) time. `num_hashes=0` is the expectation, w
instead of B, O(N²·D). The norm is that of a head's output (N-YOSO), so there is no matrix that could be shown.

A code jumps, so its derivative is that of the expectation; w' itself is infinite at q̂ = k̂, and the paper takes what it
always exceeds, dB_ij/d(q̂_i·k̂_j) = τ/2·w_ij. Here w is exact, but made for up to s queries only, every ⌈N/s⌉-th from a
random one on: what these say of q and k, times ⌈N/s⌉, is the gradient of all of them on average, in O(N·s·D). (The
paper puts v_j k_jᵀ into the buckets, O(N·m·D²), which on a CPU takes longer than even all queries would up to some ten
thousand tokens.)

In training hyperplanes are drawn anew in each pass, as dropout is; evaluation uses those of (seed, layer).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..linear.autocast import without_autocast
from .base import Attention, check_positive
from .masking import zero_masked
from .registry import register_attention

BLOCK = 128  # queries whose row of w is held at a time


@register_attention
class Yoso(Attention):
    """Dropout drops whole keys.

    Args:
        num_hashes: m; 0 = the expectation.
        hash_bits: τ.
        gradient_queries: s; no more tokens than that have the exact gradient, and so has the expectation.
        seed: of the hyperplanes, together with `layer_idx`.
    """

    paper = "Zeng 2021"
    cost = "NmτD, backward NsD"
    parameter_free = True
    supports_cross = True
    exempt_from = ("derivatives",)

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_hashes: int = 32,
        hash_bits: int = 8,
        gradient_queries: int = 512,
        seed: int = 0,
        **common,
    ):
        super().__init__(hidden_size, num_heads, **common)
        if isinstance(num_hashes, bool) or not isinstance(num_hashes, int) or num_hashes < 0:
            raise ValueError(f"num_hashes={num_hashes!r} must be a positive integer, or 0 for the expectation.")
        if isinstance(hash_bits, bool) or not isinstance(hash_bits, int) or not 1 <= hash_bits <= 16:
            raise ValueError(
                f"hash_bits={hash_bits!r} must be an integer from 1 to 16: there are 2^hash_bits buckets."
            )
        check_positive("gradient_queries", gradient_queries)
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed={seed!r} must be a non-negative integer.")
        self.num_hashes, self.hash_bits, self.seed = num_hashes, hash_bits, seed
        self.gradient_queries = gradient_queries
        shape = (num_heads, self.head_dim, num_hashes * hash_bits)
        self.register_buffer("hyperplanes", torch.empty(shape, dtype=torch.float32))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self):
        generator = torch.Generator().manual_seed(self.seed * 65537 + self.layer_idx)
        self.hyperplanes.copy_(torch.randn(self.hyperplanes.shape, generator=generator, device="cpu"))

    def codes(self, x: Tensor, hyperplanes: Tensor) -> Tensor:
        """The bucket in each hash, (B, H, N, D) -> (m, B, H, N)"""
        bits = (x @ hyperplanes.to(x.dtype) > 0).to(x.dtype).unflatten(-1, (self.num_hashes, self.hash_bits))
        digits = 2 ** torch.arange(self.hash_bits, device=x.device)
        return (bits @ digits.to(x.dtype)).long().movedim(-1, 0)

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        dtype, wide = v.dtype, torch.promote_types(v.dtype, torch.float32)
        with without_autocast(v):
            q, k, v = (x.to(wide) for x in (q, zero_masked(k, key_mask), zero_masked(v, key_mask)))
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            v = v * F.dropout(v.new_ones(*v.shape[:3], 1), self.dropout, self.training)
            hashes = self.hyperplanes
            if self.training:
                hashes = torch.randn(hashes.shape, device=v.device, dtype=v.dtype)
            with torch.no_grad():
                codes = (self.codes(q, hashes), self.codes(k, hashes)) if self.num_hashes else (None, None)
            return F.normalize(_collide(q, k, v, *codes, self.hash_bits, self.sampled(q.shape[2])), dim=-1).to(dtype)

    def sampled(self, length: int) -> slice:
        """The queries that the gradient is made from."""
        step = -(-length // self.gradient_queries) if self.num_hashes else 1
        return slice(int(torch.randint(step, ())) if self.training else step // 2, None, step)

    def naive(self, q, k, v, key_mask=None, position_ids=None):
        q, k = F.normalize(q, dim=-1), F.normalize(zero_masked(k, key_mask), dim=-1)
        cosine = q @ k.mT
        expected = (1 - torch.arccos(cosine.detach().clamp(-1, 1)) / math.pi) ** self.hash_bits
        share = expected
        if self.num_hashes:
            of_query, of_key = (self.codes(x.detach(), self.hyperplanes) for x in (q, k))
            share = (of_query.unsqueeze(-1) == of_key.unsqueeze(-2)).to(q.dtype).mean(0)  # (B, H, N, M)
        matrix = share + self.hash_bits / 2 * expected * (cosine - cosine.detach())
        output = matrix @ zero_masked(v, key_mask)
        return output / output.norm(dim=-1, keepdim=True).clamp_min(1e-12)


class _Collisions(torch.autograd.Function):
    """Directions q (B, H, N, D) and k (B, H, M, D), values (B, H, M, D) -> Σ_j B_ij v_j, (B, H, N, D)."""

    @staticmethod
    def forward(ctx, q, k, v, code_q, code_k, bits, sampled):
        ctx.save_for_backward(q, k, v, code_q, code_k)
        ctx.bits, ctx.sampled = bits, sampled
        if code_q is not None:
            return share_buckets(code_q, code_k, v, bits)
        return torch.cat([expectation(rows, k, bits) @ v for rows in q.split(BLOCK, 2)], 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (q, k, v, code_q, code_k), bits, sampled = ctx.saved_tensors, ctx.bits, ctx.sampled
        dq, dk, dv, rows = torch.zeros_like(q), 0, 0, []
        if code_q is not None:
            dv = share_buckets(code_k, code_q, grad, bits)
        with without_autocast(v):  # backward() may be called inside one
            k, v = k.contiguous(), v.contiguous()  # or every product would make them so
            for some_q, g in zip(*(x[:, :, sampled].split(BLOCK, 2) for x in (q, grad)), strict=True):
                w = expectation(some_q, k, bits)
                if code_q is None:
                    dv = dv + w.mT @ g
                slope = w.mul_(g @ v.mT).mul_(bits / 2 * sampled.step)
                rows.append(slope @ k)
                dk = dk + slope.mT @ some_q
            dq[:, :, sampled] = torch.cat(rows, 2)
        return dq, dk, dv, None, None, None, None


# Buckets are filled in place, which torch.compile can't trace: it runs as it is, between compiled parts.
_collide = torch.compiler.disable(_Collisions.apply)


def expectation(q: Tensor, k: Tensor, bits: int) -> Tensor:
    """w (B, H, N, M)"""
    w = (q @ k.mT).clamp_(-1, 1).arccos_().div_(-math.pi).add_(1)
    while bits % 2 == 0:  # `pow_` takes several times as long
        w, bits = w.square_(), bits // 2
    return w.pow_(bits) if bits > 1 else w


def share_buckets(readers: Tensor, writers: Tensor, v: Tensor, bits: int) -> Tensor:
    """Codes (m, B, H, N) and (m, B, H, M), v (B, H, M, D) -> the mean over hashes of the sums of v in each reader's
    bucket, (B, H, N, D)"""
    (batch, heads, _, width), hashes = v.shape, len(readers)
    buckets = batch * heads * 2**bits  # of a hash
    group = 2**bits * torch.arange(batch * heads, device=v.device).view(batch, heads, 1)
    tables, values = v.new_zeros(hashes, buckets, width), v.reshape(-1, width)
    for table, write in zip(tables, (writers + group).flatten(1), strict=True):
        table.index_add_(0, write, values)
    table = torch.arange(hashes, device=v.device).unsqueeze(1) * buckets
    read = ((readers + group).flatten(1) + table).T.contiguous()  # (B·H·N, m)
    sums = F.embedding_bag(read, tables.view(-1, width), mode="sum")
    return (sums / hashes).view(batch, heads, -1, width)
