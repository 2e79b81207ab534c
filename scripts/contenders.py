"""Who takes part in the benchmark: every registered mechanism, what it is compared with, and the peers.

Mechanisms that work on q, k and v run bare, without projections, against `F.scaled_dot_product_attention`. Those that
work on hidden states, and peers that come only as whole modules, run with their projections against the registry's
softmax attention with its own. All are given the same tensors: batch 1, 8 heads of 64, float32, in the memory layout
that a projection leaves behind.
"""

import contextlib
import importlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_efficient.attention import Attention, attention_options, build_attention, get_attention, list_attentions
from hf_efficient.linear import kernel_attention

HEADS, HEAD_DIM = 8, 64
HIDDEN = HEADS * HEAD_DIM

SDPA, MODULE = "SDPA", "softmax module"  # what the others are compared with


class Workload:
    """A function of leaf tensors, to be run forward or forward and backward."""

    def __init__(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...], parameters: tuple = ()):
        self.function, self.inputs, self.leaves = function, inputs, (*inputs, *parameters)
        self.gradient = torch.randn_like(inputs[-1])  # shaped and laid out like the output

    @torch.no_grad()
    def infer(self) -> Tensor:
        return self.function(*self.inputs)

    def train(self) -> tuple:
        return torch.autograd.grad(self.function(*self.inputs), self.leaves, self.gradient, allow_unused=True)


@dataclass(frozen=True)
class Contender:
    """`make(length, causal)` builds the workload; `against` names the contender that it is compared with."""

    name: str
    against: str
    make: Callable[[int, bool], Workload]


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


def where(attention: Attention, length: int) -> dict:
    """The grid, for mechanisms that need one."""
    return {"grid": near_square(length)} if attention.needs_grid else {}


# Workloads. They are told apart by partial application, so that another process can be sent one.


def _sdpa(length: int, causal: bool) -> Workload:
    return Workload(partial(F.scaled_dot_product_attention, is_causal=causal), head_inputs(length))


def _bare(name: str, options: dict, length: int, causal: bool) -> Workload:
    attention = build(name, length, causal, projections=False, **options)
    attend = partial(attention.attend, **where(attention, length))
    return Workload(attend, head_inputs(length), tuple(attention.parameters()))


def _module(name: str, options: dict, length: int, causal: bool) -> Workload:
    attention = build(name, length, causal, **options)
    grid = where(attention, length)
    return Workload(lambda x: attention(x, **grid).hidden_states, token_inputs(length), tuple(attention.parameters()))


def _kernel(features: int, length: int, causal: bool) -> Workload:
    inputs = feature_inputs(length, features)
    return Workload(lambda q, k, v: kernel_attention(q, k, v, causal=causal)[0], inputs)


def _performer_pytorch(features: int, length: int, causal: bool) -> Workload:
    from performer_pytorch import FastAttention

    with contextlib.redirect_stdout(io.StringIO()):  # it prints that it found no CUDA kernel
        attention = FastAttention(HEAD_DIM, nb_features=features, causal=causal)
    return Workload(attention, head_inputs(length))


def _performer_pytorch_given(features: int, length: int, causal: bool) -> Workload:
    from performer_pytorch.performer_pytorch import causal_linear_attention_noncuda, linear_attention

    return Workload(causal_linear_attention_noncuda if causal else linear_attention, feature_inputs(length, features))


def _linformer(length: int, causal: bool) -> Workload:
    from linformer import LinformerSelfAttention

    k = min(length, attention_options("linformer")["num_projections"])
    attention = LinformerSelfAttention(HIDDEN, length, k=k, heads=HEADS)
    return Workload(attention, token_inputs(length), tuple(attention.parameters()))


def _nystrom_attention(length: int, causal: bool) -> Workload:
    from nystrom_attention import NystromAttention

    options = attention_options("nystrom")
    landmarks, iterations = options["num_landmarks"], options["pinv_iterations"]
    attention = NystromAttention(
        HIDDEN, HEAD_DIM, HEADS, num_landmarks=landmarks, pinv_iterations=iterations, residual=False
    )
    return Workload(attention, token_inputs(length), tuple(attention.parameters()))


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


def performer_pytorch_given(features: int) -> Contender:
    """performer-pytorch's linear attention on the same given features."""
    name = f"performer-pytorch, given m={features}"
    return Contender(name, name, partial(_performer_pytorch_given, features))


def peers(causal: bool, mechanisms: list[str]) -> tuple[list[Contender], dict[str, str]]:
    """The libraries that implement one of these mechanisms, and why some are absent."""
    performers = [Contender(f"performer-pytorch m={m}", SDPA, partial(_performer_pytorch, m)) for m in (64, 256)]
    known = [("performer", "performer-pytorch", performers)]
    if not causal:
        linformers = [module("linformer"), Contender("linformer (peer)", MODULE, _linformer)]
        nystroms = [module("nystrom"), Contender("nystrom-attention", MODULE, _nystrom_attention)]
        known += [("linformer", "linformer", linformers), ("nystrom", "nystrom-attention", nystroms)]
    found, absent = [], {}
    for name, package, contenders in known:
        if name in mechanisms and (reason := missing(package)):
            absent[package] = reason
        elif name in mechanisms:
            found += contenders
    return found, absent


def missing(package: str) -> str | None:
    """Why a peer can't be imported, or None if it can."""
    try:
        importlib.import_module(package.replace("-", "_"))
    except ImportError as error:
        return f"not installed: {error}"
    return None


def field(mechanisms: list[str] | None, causal: bool) -> tuple[list[Contender], dict[str, str]]:
    """All that run in one direction, what they are compared with first, and which peers are absent and why."""
    names = [name for name in mechanisms or list_attentions() if get_attention(name).supports_causal or not causal]
    ours = [mechanism(name) for name in names]
    theirs, absent = peers(causal, names)
    base = [sdpa()] + [module("softmax")] * any(c.against == MODULE for c in ours + theirs)
    return base + ours + theirs, absent
