"""Kerformer, Tables 1 to 3: time and memory of one head of attention, by length and by range of the values."""

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from ...attention import attention_options, build_attention, get_attention, list_attentions
from .base import Claim, against
from .timed import Case, Timed

WIDTH, RANGE, LENGTH = 64, 2, 10_000
LENGTHS, RANGES = (1_000, 10_000, 100_000, 1_000_000), (1, 2, 4, 6, 8, 10)
TABLE, LONG = "kerformer", 100_000  # the table of SE-K has N²/8 numbers: from so many tokens on there is no room
VANILLA = "vanilla"  # softmax attention as the formula says, with its N x N matrix
ANY_LENGTH = "kerformer_conv"  # SE-K by a convolution
RIVALS = (VANILLA, "efficient", "linear_elu", "performer")
PAPER_TIME = {
    1_000: ("4.001 s", "1.000 s", "1.000 s", "0.882 s", "0.200 s"),
    10_000: ("302.072 s", "31.015 s", "6.0121 s", "6.112 s", "5.852 s"),
    100_000: ("OOM", "87.024 s", "51.014 s", "55.514 s", "44.011 s"),
}
PAPER_MEMORY = {
    2: ("11,001 M", "585 M", "678 M", "702 M", "578 M"),
    4: ("12,454 M", "623 M", "725 M", "754 M", "602 M"),
}


def vanilla(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


@lru_cache(maxsize=2)  # all mechanisms share them: a million tokens are 768 MB
def inputs(length: int, extent: float) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v (1, 1, N, 64) within [−extent, extent]."""
    generator = torch.Generator().manual_seed(0)
    return tuple((torch.rand(1, 1, length, WIDTH, generator=generator) * 2 - 1) * extent for _ in range(3))


def call(name: str, length: int, extent: float) -> Callable[[], Tensor]:
    """One forward pass: of q, k, v, or as a module where there are none."""
    q, k, v = inputs(length, extent)
    if name == VANILLA:
        return partial(vanilla, q, k, v)
    options, name = ({"se_mode": "conv"}, "kerformer") if name == ANY_LENGTH else ({}, name)
    mechanism = get_attention(name)
    if "max_length" in attention_options(name):
        options["max_length"] = length
    attention = build_attention(name, WIDTH, 1, projections=not mechanism.per_head, **options).eval()
    rows = max(n for n in range(1, int(length**0.5) + 1) if length % n == 0)
    grid = {"grid": (rows, length // rows)} if mechanism.needs_grid else {}

    @torch.inference_mode()
    def forward():
        return attention.attend(q, k, v, **grid) if mechanism.per_head else attention(q[0], **grid).hidden_states

    return forward


def calls(names, length: int, extent: float = RANGE) -> dict:
    return {name: partial(call, name, length, extent) for name in names}


def every() -> list[str]:
    return [VANILLA, ANY_LENGTH, *list_attentions()]


def by_length(quick: bool) -> list[Case]:
    """All mechanisms; the paper's lengths, each judged by a tenth of it, which may cost a hundredth."""
    lengths = (64, 128) if quick else LENGTHS
    cases = []
    for shorter, length in zip((None, *lengths), lengths, strict=False):
        names = RIVALS if quick else [name for name in every() if name != TABLE or length < LONG]
        smaller = None if shorter is None else (calls(names, shorter), 30)
        cases.append(Case(f"N={length:,}", calls(names, length), calls(names, 64), smaller))
    return cases


def by_range(quick: bool) -> list[Case]:
    """The paper's five."""
    length, ranges = (128, (1,)) if quick else (LENGTH, RANGES)
    names = (*RIVALS, "kerformer")
    return [Case(f"[-{x}, {x}]", calls(names, length, x), calls(names, 64, x)) for x in ranges]


def statements():
    for length, (*figures, own) in PAPER_TIME.items():
        best, rivals = (TABLE, RIVALS) if length < LONG else (ANY_LENGTH, RIVALS[1:])
        paper = {f"length/{name}": f"{own} against {x}" for name, x in zip(RIVALS, figures, strict=True)}
        says = f"N={length:,}: Kerformer is faster than {{}}"
        arms = [f"length/{name}" for name in rivals]
        yield from against(arms, f"length/{best}", f"seconds, N={length:,}", says, paper, more=False, ratio=True)
    for extent, (*figures, own) in PAPER_MEMORY.items():
        paper = {f"range/{name}": f"{own} against {x}" for name, x in zip(RIVALS, figures, strict=True)}
        metric, says = f"bytes, [-{extent}, {extent}]", f"[-{extent}, {extent}]: Kerformer takes less memory than {{}}"
        arms = [f"range/{name}" for name in RIVALS]
        yield from against(arms, "range/kerformer", metric, says, paper, more=False, ratio=True)


CLAIM = Claim(
    name="linear_cost",
    source="Kerformer (Gan et al. 2023), section 4, Tables 1 to 3",
    says=(
        "Below a million tokens Kerformer's attention usually takes less time than vanilla, efficient, linear_elu and "
        "performer attention, and for values within [-2, 2] and [-4, 4] less memory."
    ),
    figures="10,000 tokens: 302 s, 31.0 s, 6.01 s, 6.11 s and 5.85 s (Kerformer), in Matlab",
    decided=(
        "One head of 64 channels, forward, one thread, in turns. The table of SE-K has N²/8 numbers, so that from "
        "100,000 tokens on its convolution takes its place. vanilla is the formula, softmax PyTorch's fused kernel. "
        "What would take more than 10 s a call, by a shorter one, is left out. Mechanisms without queries and keys "
        "(axial, differential, fnet, mixer, separable) are timed with their projections."
    ),
    parts=(
        Timed("length", by_length, arms=len(every()), minutes=0.15, metrics=("seconds", "bytes"), patience=10.0),
        Timed("range", by_range, arms=5, minutes=0.2, metrics=("seconds", "bytes")),
    ),
    statements=tuple(statements()),
    shown={
        f"{metric}, N={n:,}": f"{unit}, N={n:,}"
        for metric, unit in (("seconds", "s"), ("bytes", "MB"))
        for n in LENGTHS
    }
    | {
        f"{metric}, [-{x}, {x}]": f"{unit}, [-{x}, {x}]"
        for metric, unit in (("seconds", "s"), ("bytes", "MB"))
        for x in RANGES
    },
)
