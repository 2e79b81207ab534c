"""EcoFormer (Liu et al. 2022): linear attention on binary codes, by a hash that is learnt while training.

    h(x) = sign(A κ̃(x)) ∈ {±1}^b,    κ̃(x)_m = exp(−‖x − a_m‖² / 2σ²) − μ_m,    φ(x) = [h(x), √b]
    φ(q)·φ(k) = h(q)·h(k) + b ≥ 0,    o as in every linear mechanism, with F = b + 1 features

Queries and keys share a projection and the hash, which each head has of its own: m anchors a, σ² the mean squared
distance to them, μ the mean of the kernel, so that bits are balanced. All are buffers. In the backward pass sign is
the identity.

A is learnt every `hash_interval` training forwards, from a sample of their tokens, by kernel-supervised hashing (Liu
et al. 2012): h(x_i)·h(x_j)/b is to be S_ij, which is 1 for the tokens that softmax attention likes best, −1 for those
it likes least, 0 between. Steps of gradient descent on Σ_ij (S_ij − h_i·h_j/b)², with tanh(·/2) for sign; tokens of
the sample become the anchors. The new hash is kept if its codes, with sign, do better than those of the old. (To
maximise Σ_ij S_ij h_i·h_j instead would ask the same of every bit: they would all become one.)
"""

import random

import torch
import torch.nn.functional as F
from torch import Tensor

from ..linear.autocast import without_autocast
from .base import check_positive
from .counter import Counter, first_run
from .kernel_attention import KernelAttention
from .registry import register_attention
from .shared_queries import SharedQueries
from .softmax import squared_distance

SAMPLE = 128  # tokens to learn from
LIKED = 0.1  # of them are S = 1, and as many −1, in a row
STEPS, RATE = 30, 0.1  # of the descent; the rate is relative to A


@register_attention
class Ecoformer(SharedQueries, KernelAttention):
    """
    Args:
        num_bits: b.
        num_anchors: m.
        hash_interval: training forwards from one learning of the hash to the next, the first included; 0 = never.
        seed: of the hash before it is learnt, together with `layer_idx`.
    """

    paper = "Liu 2022"
    cost = "NbD"
    exempt_from = ("derivatives",)

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_bits: int = 16,
        num_anchors: int = 25,
        hash_interval: int = 100,
        seed: int = 0,
        **common,
    ):
        super().__init__(hidden_size, num_heads, **common)
        check_positive("num_bits", num_bits)
        check_positive("num_anchors", num_anchors)
        if isinstance(hash_interval, bool) or not isinstance(hash_interval, int) or hash_interval < 0:
            raise ValueError(f"hash_interval={hash_interval!r} must be a number of forwards, or 0 for never.")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed={seed!r} must be a non-negative integer.")
        self.num_bits, self.num_anchors, self.num_features = num_bits, num_anchors, num_bits + 1
        self.hash_interval, self.seed, self.counter, self.due = hash_interval, seed, Counter(), False
        self.register_buffer("anchors", torch.empty(num_heads, num_anchors, self.head_dim))  # a
        self.register_buffer("variance", torch.empty(num_heads, 1, 1))  # σ²
        self.register_buffer("mean", torch.empty(num_heads, 1, num_anchors))  # μ
        self.register_buffer("mixing", torch.empty(num_heads, num_bits, num_anchors))  # A
        self.register_buffer("forwards", torch.zeros((), dtype=torch.long))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self):
        """Random hyperplanes, for tokens of unit variance."""
        self.forwards.zero_()
        generator = torch.Generator().manual_seed(random.Random(f"{self.seed}/{self.layer_idx}").getrandbits(63))
        drawn = torch.randn(self.num_heads, SAMPLE, self.head_dim, generator=generator, device="cpu")
        for name, value in zip(("anchors", "variance", "mean"), self.kernel_of(drawn), strict=True):
            getattr(self, name).copy_(value)
        self.mixing.copy_(torch.randn(self.mixing.shape, generator=generator, device="cpu"))

    # The hash.

    def kernel_of(self, sample: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """a, σ² and μ for tokens (H, n, D): evenly spaced ones become the anchors."""
        chosen = torch.arange(self.num_anchors, device=sample.device) * sample.shape[1] // self.num_anchors
        anchors = sample[:, chosen]
        distance = squared_distance(sample, anchors).clamp_min(0)  # (H, n, m)
        variance = distance.mean((1, 2), keepdim=True).clamp_min(torch.finfo(sample.dtype).eps)
        return anchors, variance, torch.exp(-distance / (2 * variance)).mean(1, keepdim=True)

    def hash(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return tuple(x.to(dtype) for x in (self.anchors, self.variance, self.mean, self.mixing))

    def prepare(self, q, k, key_mask, position_ids, state=None):
        with without_autocast(q):
            x = q.to(torch.promote_types(q.dtype, torch.float32))
            if self.due and self.training:
                self.due = False
                self.learn(x.detach(), key_mask)
            *kernel, A = self.hash(x.dtype)
            g = centred_kernel(x, *kernel) @ A.mT
            code = signs(g) + (g - g.detach())
            phi_q = phi_k = F.pad(code, (0, 1), value=self.num_bits**0.5)
        return phi_q, phi_k, {}

    def literal_features(self, q, k, key_mask, position_ids):
        features = []
        for x in (q, k):
            apart = (x.unsqueeze(-2) - self.anchors.to(x.dtype).unsqueeze(1)).square().sum(-1)  # (B, H, N, m)
            kernel = torch.exp(-apart / (2 * self.variance.to(x.dtype))) - self.mean.to(x.dtype)
            g = torch.einsum("bhnm,hcm->bhnc", kernel, self.mixing.to(x.dtype))
            h = torch.where(g < 0, -1.0, 1.0).to(x.dtype) + g - g.detach()
            features.append(torch.cat([h, torch.full_like(h[..., :1], self.num_bits**0.5)], -1))
        return tuple(features)

    # Learning it.

    def before_forward(self):
        if self.training and self.hash_interval and first_run():
            self.count_forward()

    @torch.compiler.disable
    def count_forward(self) -> None:
        self.due = (self.counter.add(self.forwards) - 1) % self.hash_interval == 0

    @torch.compiler.disable
    @torch.no_grad()
    def learn(self, x: Tensor, key_mask: Tensor | None = None) -> None:
        """From tokens (B, H, N, D). Nothing of it waits for the device."""
        sample = sampled(x, key_mask)
        if sample.shape[1] < 2:
            return
        wanted, old, kernel = liked(sample), self.hash(x.dtype), self.kernel_of(sample)
        new = *kernel, descend(centred_kernel(sample, *kernel), wanted, old[-1])
        loss, before = (
            disagreement(signs(centred_kernel(sample, *kernel) @ A.mT), wanted) for *kernel, A in (new, old)
        )
        better = loss < before
        for name, one, other in zip(("anchors", "variance", "mean", "mixing"), new, old, strict=True):
            # A new tensor: a backward pass still to come holds on to the old one.
            setattr(self, name, torch.where(better, one, other).to(getattr(self, name).dtype))

    def operations(self, length: int) -> dict[str, dict[str, int]]:
        """Multiplications and additions of one layer's attention for N tokens, both ways, with softmax attention's
        beside them: a count, for hardware on which additions cost less. On a CPU ±1 takes the time of any number."""
        hashing = length * self.num_anchors * (self.head_dim + self.num_bits)
        sums = 2 * length * self.num_features * (self.head_dim + 1)  # into the state, and out of it
        division = length * self.head_dim
        products = 2 * length * length * self.head_dim
        return {
            "ecoformer": {
                "multiplications": self.num_heads * (hashing + division),
                "additions": self.num_heads * (hashing + sums),
            },
            "softmax": {
                "multiplications": self.num_heads * (products + length * length),
                "additions": self.num_heads * (products + length * length),
            },
        }


def centred_kernel(x: Tensor, anchors: Tensor, variance: Tensor, mean: Tensor) -> Tensor:
    """κ̃: (.., H, N, D) -> (.., H, N, m)"""
    return torch.exp(squared_distance(x, anchors).clamp_min(0) * (-0.5 / variance)) - mean


def signs(g: Tensor) -> Tensor:
    return (g >= 0).to(g.dtype).mul_(2).sub_(1)  # `where` of two numbers takes several times as long


def sampled(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Evenly spaced real tokens of a batch: (B, H, N, D) -> (H, n, D)"""
    tokens = x.transpose(0, 1).flatten(1, 2)  # (H, B·N, D)
    count = min(SAMPLE, tokens.shape[1])
    t = torch.arange(count, device=x.device)
    if key_mask is None:
        return tokens[:, t * tokens.shape[1] // count]
    mask = key_mask.flatten()
    order = mask.logical_not().to(torch.uint8).argsort(stable=True)  # real tokens first
    chosen = order[t * mask.sum() // count]
    return tokens[:, chosen].masked_fill(~mask[chosen].unsqueeze(-1), 0)  # of padding only


def liked(sample: Tensor) -> Tensor:
    """S (H, n, n), made symmetric"""
    count = sample.shape[1]
    similar = sample @ sample.mT  # softmax keeps the order
    few = max(1, int(LIKED * count))
    S = torch.zeros_like(similar).scatter(-1, similar.topk(few, -1).indices, 1.0)
    S = S.scatter(-1, similar.topk(few, -1, largest=False).indices, -1.0)
    return (S + S.mT) / 2


def disagreement(codes: Tensor, wanted: Tensor) -> Tensor:
    """Σ_ij (S_ij − h_i·h_j/b)² of codes (H, n, b): (H, 1, 1)"""
    return (codes @ codes.mT / codes.shape[-1] - wanted).square().sum((1, 2), keepdim=True)


def descend(kernel: Tensor, wanted: Tensor, A: Tensor) -> Tensor:
    """A (H, b, m) after steps down the disagreement of tanh(A κ̃/2), for κ̃ (H, n, m)"""
    for _ in range(STEPS):
        U = torch.tanh(kernel @ A.mT / 2)  # 2 sigmoid − 1
        slope = (U @ U.mT / U.shape[-1] - wanted) @ U * (1 - U.square())  # up to a factor
        step = slope.mT @ kernel
        norm = torch.linalg.matrix_norm(step, keepdim=True).clamp_min(torch.finfo(A.dtype).tiny)
        A = A - RATE * torch.linalg.matrix_norm(A, keepdim=True) * step / norm
    return A
