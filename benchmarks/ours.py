"""What of ours is measured: every registered mechanism, and PyTorch's softmax attention beside it.

Mechanisms that work on q, k and v run bare, without projections, against `F.scaled_dot_product_attention`. Those that
work on hidden states, and peers that come only as whole modules, run with their projections against the registry's
softmax attention with its own. All are given the same tensors: batch 1, 8 heads of 64, float32, in the memory layout
that a projection leaves behind.
"""

from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.workloads import Contender, Workload
from hf_efficient.attention import Attention, attention_options, build_attention, get_attention
from hf_efficient.linear import kernel_attention

HEADS, HEAD_DIM = 8, 64
HIDDEN = HEADS * HEAD_DIM

SDPA, MODULE = "SDPA", "softmax module"  # what the others are compared with


@lru_cache(maxsize=4)
def head_inputs(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v (1, H, N, D), in memory (1, N, H, D)."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, length, HEADS, HEAD_DIM)
    return tuple(torch.randn(shape, generator=generator).transpose(1, 2).requires_grad_() for _ in range(3))


@lru_cache(maxsize=4)
def feature_inputs(length: int, features: int) -> tuple[Tensor, Tensor, Tensor]:
    """φ(q), φ(k) (1, H, N, F), positive, and v (1, H, N, D)."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, HEADS, length, features)
    phi_q, phi_k = ((torch.rand(shape, generator=generator) + 0.01).requires_grad_() for _ in range(2))
    return phi_q, phi_k, head_inputs(length)[2]


@lru_cache(maxsize=4)
def token_inputs(length: int) -> tuple[Tensor]:
    """x (1, N, d)."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(1, length, HIDDEN, generator=generator).requires_grad_(),)


def near_square(length: int) -> tuple[int, int]:
    """(rows, columns) of the grid of so many cells that is nearest to a square."""
    rows = max(r for r in range(1, int(length**0.5) + 1) if length % r == 0)
    return rows, length // rows


def build(name: str, length: int, causal: bool, hidden_size=HIDDEN, num_heads=HEADS, **options) -> Attention:
    """The mechanism in evaluation mode, with tables as long as needed."""
    if "max_length" in attention_options(name):
        options["max_length"] = length
    return build_attention(name, hidden_size, num_heads, causal=causal, **options).eval()


def grid_for(attention: Attention, length: int) -> dict:
    """The grid, for mechanisms that need one."""
    return {"grid": near_square(length)} if attention.needs_grid else {}


# Workloads. They are told apart by partial application, so that another process can be sent one.


def _sdpa(length: int, causal: bool) -> Workload:
    return Workload(partial(F.scaled_dot_product_attention, is_causal=causal), head_inputs(length))


def _bare(name: str, options: dict, length: int, causal: bool) -> Workload:
    attention = build(name, length, causal, projections=False, **options)
    attend = partial(attention.attend, **grid_for(attention, length))
    return Workload(attend, head_inputs(length), tuple(attention.parameters()))


def _module(name: str, options: dict, length: int, causal: bool) -> Workload:
    attention = build(name, length, causal, **options)
    grid = grid_for(attention, length)
    return Workload(lambda x: attention(x, **grid).hidden_states, token_inputs(length), tuple(attention.parameters()))


def _kernel(features: int, length: int, causal: bool) -> Workload:
    inputs = feature_inputs(length, features)
    return Workload(lambda q, k, v: kernel_attention(q, k, v, causal=causal)[0], inputs)


# Contenders.


def sdpa() -> Contender:
    return Contender(SDPA, SDPA, _sdpa)


def mechanism(name: str, **options) -> Contender:
    """A registered mechanism: bare against SDPA, or as a module if it works on hidden states."""
    shown = "".join(f" {option}={value}" for option, value in options.items())
    against, make = (SDPA, _bare) if get_attention(name).per_head else (MODULE, _module)
    return Contender(name + shown, against, partial(make, name, options))


def module(name: str) -> Contender:
    """A mechanism with its projections."""
    return Contender(f"{name} module", MODULE, partial(_module, name, {}))


def kernel(features: int, against: str = SDPA) -> Contender:
    """The linear engine on given features."""
    return Contender(f"kernel_attention, given m={features}", against, partial(_kernel, features))
