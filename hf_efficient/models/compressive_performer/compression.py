"""How c old slots of memory become one: f_c, (B, n, d) -> (B, n/c, d), one per layer.

Learned ones are trained by an auxiliary loss alone, which reaches no other parameter. (The public
compressive-transformer-pytorch freezes its K and V projections for good at the first compression; here detached
weights are used functionally, and the projections keep learning.)
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ...attention.base import Attention
from .fast.reconstruction import fast_reconstruction_loss


class Compression(nn.Module):
    def __init__(self, hidden_size: int, rate: int):
        super().__init__()
        self.hidden_size, self.rate = hidden_size, rate

    def groups(self, old: Tensor) -> Tensor:
        """(B, n, d) -> (B, n/c, c, d)"""
        return old.unflatten(1, (-1, self.rate))

    def auxiliary_loss(self, q: Tensor, old: Tensor, new: Tensor, attention: nn.Module) -> Tensor | None:
        """How much was lost when old slots (B, n, d) became new ones (B, n/c, d). `attention` is the layer's
        `MemoryAttention`, q (B, H, N, D) the queries of its last tokens, without positions."""
        return None


class MeanCompression(Compression):
    def forward(self, old: Tensor) -> Tensor:
        return self.groups(old).mean(2)


class MaxCompression(Compression):
    def forward(self, old: Tensor) -> Tensor:
        return self.groups(old).amax(2)


class ConvCompression(Compression):
    """A convolution of width and stride c, as one matmul on groups of slots. It starts as the mean.

    Its loss is attention reconstruction: ‖Attn(q, K, V(old)) − Attn(q, K, V(new))‖² with the layer's own projections
    and kernel, every query seeing every slot, without positions.
    """

    def __init__(self, hidden_size: int, rate: int):
        super().__init__(hidden_size, rate)
        self.add_parameters()
        self.reset_parameters()

    def add_parameters(self) -> None:
        self.weight = nn.Parameter(torch.empty(self.hidden_size, self.rate * self.hidden_size))
        self.bias = nn.Parameter(torch.empty(self.hidden_size))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.weight.copy_(torch.eye(self.hidden_size).repeat(1, self.rate) / self.rate)
        self.bias.zero_()

    def forward(self, old: Tensor) -> Tensor:
        return F.linear(self.groups(old).flatten(2), self.weight, self.bias)

    def auxiliary_loss(self, q, old, new, attention):
        loss = _ReconstructionLoss(attention)
        weights = {name: p.detach() for name, p in loss.named_parameters()}
        return functional_call(loss, weights, (q.detach(), old.detach(), new))


class _ReconstructionLoss(nn.Module):
    """What queries lose when slots of memory are compressed: a module, so that it can be given detached weights."""

    def __init__(self, attention: nn.Module):
        super().__init__()
        self.attention = attention

    def forward(self, q: Tensor, old: Tensor, new: Tensor) -> Tensor:
        before, after = (self.attention.split_slots(self.attention.project_slots(slots)) for slots in (old, new))
        return reconstruction_loss(self.attention.attention, q, before, after)


def reconstruction_loss(attention: Attention, q: Tensor, before: tuple, after: tuple) -> Tensor:
    """The mean squared difference between what queries (B, H, N, D) see in (k, v) (B, H, n, D) before and after."""
    loss = fast_reconstruction_loss(attention, q, before, after)
    return F.mse_loss(look_at(attention, q, *after), look_at(attention, q, *before)) if loss is None else loss


def look_at(attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What every query (B, H, N, D) sees in all keys and values (B, H, n, D), whatever their order: (B, H, N, D)"""
    if attention.name in ("softmax", "local", "longformer", "lsh"):  # without an order: no window, no buckets
        return F.scaled_dot_product_attention(q, F.normalize(k, dim=-1) if attention.name == "lsh" else k, v)
    state = attention.initial_state(q.shape[0], q.device, torch.promote_types(q.dtype, torch.float32))
    state = attention.absorb(k, v, state)
    nobody = torch.zeros(q.shape[0], q.shape[2], device=q.device, dtype=torch.bool)
    blank = q.new_zeros(*q.shape[:3], k.shape[-1]), q.new_zeros(*q.shape[:3], v.shape[-1])
    return attention.extend(q, *blank, state, key_mask=nobody)[0]


class AutoencoderCompression(ConvCompression):
    """The same with a decoder, a transposed convolution, and the mean squared error of what it gives back."""

    def add_parameters(self) -> None:
        super().add_parameters()
        self.decoder_weight = nn.Parameter(torch.empty(self.rate * self.hidden_size, self.hidden_size))
        self.decoder_bias = nn.Parameter(torch.empty(self.rate * self.hidden_size))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.decoder_weight.copy_(torch.eye(self.hidden_size).repeat(self.rate, 1))
        self.decoder_bias.zero_()

    def decode(self, new: Tensor) -> Tensor:
        """(B, n/c, d) -> (B, n, d)"""
        slots = F.linear(new, self.decoder_weight, self.decoder_bias)
        return slots.unflatten(-1, (self.rate, self.hidden_size)).flatten(1, 2)

    def auxiliary_loss(self, q, old, new, attention):
        return F.mse_loss(self.decode(new), old.detach())


COMPRESSIONS = {
    "conv": ConvCompression,
    "autoencoder": AutoencoderCompression,
    "mean": MeanCompression,
    "max": MaxCompression,
}
