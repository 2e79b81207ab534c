"""What we compare with: the libraries of others that implement one of our mechanisms."""

import contextlib
import importlib
import io
from functools import partial

from benchmarks.ours import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    MODULE,
    SDPA,
    feature_inputs,
    head_inputs,
    mechanism,
    module,
    sdpa,
    token_inputs,
)
from benchmarks.workloads import Contender, Workload
from hf_efficient.attention import attention_options, get_attention, list_attentions

# As PyPI calls them.
PACKAGES = ("performer-pytorch", "linformer", "nystrom-attention", "compressive-transformer-pytorch")


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
