"""Attention mechanisms measured on this machine: milliseconds and memory against length."""

import math
import statistics
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..attention import attention_options, build_attention, get_attention, list_attentions
from ..errors import CommandError
from .checks import one_of
from .clock import clock

WIDTH, HEADS = 128, 4
LENGTHS = (256, 512, 1024, 2048, 4096)
MOST_MECHANISMS = 6
LONGEST_CALL = 1.5  # seconds that one call may be expected to take
ENOUGH, MOST_CALLS = 0.15, 9  # seconds, and calls, that are timed
FIRST = ("softmax", "linear_elu", "performer", "local")  # picked when the page opens

METHOD = (
    f"One sequence, {WIDTH} channels, {HEADS} heads, projections included, float32, forward only. Milliseconds: the "
    f"median of up to {MOST_CALLS} calls. Memory: the most bytes that the tensors of one call, and its input, held at "
    "a time; what a kernel takes and gives back inside is not seen. This page's own work runs on the same processor."
)


class Measured(NamedTuple):
    name: str
    length: int
    milliseconds: float
    peak_bytes: int


class Done(NamedTuple):
    share: float  # of the work
    measured: list[Measured]
    left_out: list[str]


def mechanisms(causal: bool) -> list[str]:
    return list_attentions(supports_causal=True) if causal else list_attentions()


def lengths_to(longest: int) -> list[int]:
    return [length for length in LENGTHS if length <= longest]


def race(names: Sequence[str], causal: bool, longest: int) -> Iterator[Done]:
    """Measures each mechanism at each length, shortest first, and tells after each."""
    names = list(dict.fromkeys(names or []))
    if not names:
        raise CommandError("Pick at least one mechanism.")
    if len(names) > MOST_MECHANISMS:
        raise CommandError(f"Pick at most {MOST_MECHANISMS} mechanisms: {len(names)} are picked.")
    for name in names:
        one_of("a mechanism", name, mechanisms(causal))
    if longest not in LENGTHS:
        raise CommandError(f"The longest sequence must be one of {', '.join(map(str, LENGTHS))}.")
    measured, left_out, last = [], [], {}
    lengths = lengths_to(longest)
    for i, (length, name) in enumerate((length, name) for length in lengths for name in names):
        if (reason := objection(name, last)) is None:
            try:
                measured.append(measure(name, length, causal))
                last[name] = measured[-1].milliseconds / 1e3
            except (ValueError, RuntimeError, MemoryError) as error:
                reason, last[name] = " ".join(str(error).split())[:160], math.inf
        if reason:
            left_out.append(f"{name} at {length:,}: {reason}")
        yield Done((i + 1) / (len(lengths) * len(names)), list(measured), list(left_out))


def objection(name: str, last: dict[str, float]) -> str | None:
    """Why a mechanism is not tried at twice the length; None if it is."""
    expected = 4 * last.get(name, 0.0)
    if expected > LONGEST_CALL:
        last[name] = math.inf
        return "left out, one call would take too long" if math.isfinite(expected) else "left out, as before"
    return None


@torch.no_grad()
def measure(name: str, length: int, causal: bool) -> Measured:
    cls = get_attention(name)
    options = {"max_length": length} if "max_length" in attention_options(name) else {}
    attention = build_attention(name, WIDTH, HEADS, causal=causal, **options).eval()
    given = {"grid": near_square(length)} if cls.needs_grid else {}
    x = torch.randn(1, length, WIDTH, generator=torch.Generator().manual_seed(0))
    with PeakBytes() as memory:  # warms up, too
        attention(x, **given)
    taken = []
    while len(taken) < MOST_CALLS and (sum(taken) < ENOUGH or len(taken) < 3):
        start = clock()
        attention(x, **given)
        taken.append(clock() - start)
    return Measured(name, length, 1e3 * statistics.median(taken), memory.peak + x.nbytes)


def near_square(length: int) -> tuple[int, int]:
    rows = max(r for r in range(1, math.isqrt(length) + 1) if length % r == 0)
    return rows, length // rows


class PeakBytes(TorchDispatchMode):
    """The most bytes that tensors made in this context held at a time."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {x.untyped_storage()._cdata for x in args if isinstance(x, torch.Tensor)}
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, torch.Tensor):
                self.count(x.untyped_storage(), given)
        return result

    def count(self, storage, given: set[int]) -> None:
        key = storage._cdata
        if key in given or key in self.known:
            return
        size = storage.nbytes()
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.release, key, size)

    def release(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size
