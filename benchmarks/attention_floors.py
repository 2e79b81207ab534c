"""How the attention's floors are measured, each figure beside its bound in floors.py."""

from collections.abc import Iterator
from itertools import pairwise

import torch

from benchmarks.command_line import Progress
from benchmarks.floors import (
    BIDIRECTIONAL_FLOOR,
    CAUSAL_FLOORS,
    MEMORY_FLOOR,
    MEMORY_GROWTH,
    PEER_FLOORS,
    STEP_GROWTH,
    Figure,
)
from benchmarks.memory import peak_memory
from benchmarks.ours import HEAD_DIM, HEADS, HIDDEN, build, kernel, mechanism, sdpa
from benchmarks.peers import missing, performer_pytorch_given
from benchmarks.timing import Ratio, race, ratio
from benchmarks.workloads import TRAINING, Contender
from hf_efficient.attention import Attention, get_attention, list_attentions
from hf_efficient.experiments.timing import seconds_of

PEER_LENGTHS, PEER_PATIENCE = (512, 1024, 2048, 4096), 90.0  # seconds a call: its slowness is to be measured
LINEAR, LINEAR_LENGTH = ("linear_elu", "efficient", "kerformer", "cosformer", "performer"), 1024
MEMORY_LENGTHS, PEER_MEMORY_LENGTH = (2048, 4096, 8192), 4096
FEW_TOKENS, MANY_TOKENS = 128, 20_000  # before the recurrent steps that are compared
STEPS, TURNS = 20, 50


def all_figures(rounds: int, progress: Progress) -> list[Figure]:
    """Measures everything that has a target; several minutes."""
    steps = (causal_speed, peer_speed, bidirectional_speed, memory)
    return [figure for step in steps for figure in step(rounds, progress)] + list(recurrent_steps(progress))


def number_of_steps() -> int:
    """How often `all_figures` reports progress."""
    lengths = {length for floors in CAUSAL_FLOORS.values() for length in floors}
    peers = len(PEER_FLOORS) * (len(PEER_LENGTHS) + 1)
    return len(lengths) + peers + 1 + len(MEMORY_LENGTHS) + len(recurrent_mechanisms())


def causal_speed(rounds: int, progress: Progress) -> Iterator[Figure]:
    for length in sorted({length for floors in CAUSAL_FLOORS.values() for length in floors}):
        progress.say(f"target: causal against SDPA, N={length}")
        contenders = [contender for contender, floors in CAUSAL_FLOORS.items() if length in floors]
        for contender, value, note in duel([sdpa(), *contenders], length, True, rounds):
            floor = CAUSAL_FLOORS[contender][length]
            yield Figure("causal against SDPA", f"{contender.name}, N={length}", floor, value, note=note)
        progress.advance()


def peer_speed(rounds: int, progress: Progress) -> Iterator[Figure]:
    absent = missing("performer-pytorch")
    for features, floor in PEER_FLOORS.items():
        peer = performer_pytorch_given(features)
        ours = kernel(features, against=peer.name)
        for length in PEER_LENGTHS:
            progress.say(f"target: against {peer.name}, N={length}")
            found = [(ours, None, absent)] if absent else duel([peer, ours], length, True, rounds, PEER_PATIENCE)
            for _, value, note in found:
                yield Figure("against performer-pytorch", f"m={features}, N={length}", floor, value, note=note)
            progress.advance()


def bidirectional_speed(rounds: int, progress: Progress) -> Iterator[Figure]:
    progress.say(f"target: bidirectional against SDPA, N={LINEAR_LENGTH}")
    contenders = [mechanism(name) for name in LINEAR]
    for contender, value, note in duel([sdpa(), *contenders], LINEAR_LENGTH, False, rounds):
        yield Figure(
            "bidirectional against SDPA", f"{contender.name}, N={LINEAR_LENGTH}", BIDIRECTIONAL_FLOOR, value, note=note
        )
    progress.advance()


def duel(
    contenders: list[Contender], length: int, causal: bool, rounds: int, patience: float | None = None
) -> Iterator[tuple[Contender, float | None, str]]:
    """The speed-up of all but the first contender, with its quartiles or why there is none."""
    limit = {} if patience is None else {"patience": patience}
    rows, left_out = race(contenders, length, causal, rounds, [TRAINING], **limit)
    speedups = {row["contender"]: Ratio(**row["speedup"]) for row in rows}
    reasons = {row["contender"]: row["reason"] for row in left_out}
    for contender in contenders[1:]:
        speedup = speedups.get(contender.name)
        if speedup is None:
            yield contender, None, reasons[contender.name]
        else:
            yield contender, speedup.median, speedup.quartiles


def memory(rounds: int, progress: Progress) -> Iterator[Figure]:
    contender, peaks = mechanism("linear_elu"), {}
    for length in MEMORY_LENGTHS:
        progress.say(f"target: peak memory, N={length}")
        peaks[length] = peak_memory(contender, length, True)
        progress.advance()
    for short, long in pairwise(MEMORY_LENGTHS):
        value, note = compare_peaks(peaks[long], peaks[short])
        claim = f"{contender.name}, N={short} to {long}"
        yield Figure("growth of peak memory", claim, MEMORY_GROWTH, value, at_most=True, note=note)
    for features in PEER_FLOORS:
        progress.say(f"target: peak memory against performer-pytorch, m={features}")
        claim = f"performer-pytorch over ours, m={features}, N={PEER_MEMORY_LENGTH}"
        value, note = None, missing("performer-pytorch") or ""
        if not note:
            theirs, ours = (
                peak_memory(c, PEER_MEMORY_LENGTH, True) for c in (performer_pytorch_given(features), kernel(features))
            )
            value, note = compare_peaks(theirs, ours)
        yield Figure("peak memory", claim, MEMORY_FLOOR, value, note=note)
        progress.advance()


def compare_peaks(more: dict | str, less: dict | str) -> tuple[float | None, str]:
    """The ratio of two peaks, and the peaks themselves or why there is none."""
    for peak in (more, less):
        if isinstance(peak, str):
            return None, peak
    more, less = more[TRAINING], less[TRAINING]
    return more / less, f"{more / 1e6:.0f} MB over {less / 1e6:.0f} MB"


def recurrent_mechanisms() -> list[str]:
    return [name for name in list_attentions() if get_attention(name).supports_recurrent]


def recurrent_steps(progress: Progress) -> Iterator[Figure]:
    for name in recurrent_mechanisms():
        progress.say(f"target: recurrent step of {name}")
        growth, few, many = step_growth(name)
        note = f"{growth.quartiles}, state {many / 1e3:.0f} kB"
        if few != many:  # a state that grows fails whatever its time
            growth, note = growth._replace(median=float("inf")), f"state grew from {few} to {many} bytes"
        claim = f"{name}, after {MANY_TOKENS} tokens over {FEW_TOKENS}"
        yield Figure("time of a recurrent step", claim, STEP_GROWTH, growth.median, at_most=True, note=note)
        progress.advance()


@torch.no_grad()
def step_growth(name: str, few: int = FEW_TOKENS, many: int = MANY_TOKENS) -> tuple[Ratio, int, int]:
    """Time of a step after `many` tokens over one after `few`, and the bytes of the state at both."""
    options = {"projections": False} if get_attention(name).per_head else {}
    attention = build(name, many + STEPS, causal=True, **options)
    states = [state_after(attention, tokens) for tokens in (few, many)]
    seconds = [[], []]
    for turn in range(-1, TURNS):
        for state, taken in zip(states, seconds, strict=True):
            fresh = {key: tensor.clone() for key, tensor in state.items()}  # steps write into it
            elapsed = seconds_of(lambda state=fresh: advance(attention, state, STEPS))
            if turn >= 0:  # the first warms up
                taken.append(elapsed)
    sizes = [sum(tensor.nbytes for tensor in state.values()) for state in states]
    return ratio(seconds[1], seconds[0]), *sizes


def advance(attention: Attention, state: dict, steps: int) -> None:
    """So many tokens, one at a time."""
    token = [torch.ones(1, HEADS, 1, HEAD_DIM)] * 3 if attention.per_head else torch.ones(1, 1, HIDDEN)
    for _ in range(steps):
        state = attention.step(*token, state)[1] if attention.per_head else attention(token, state=state).state


def state_after(attention: Attention, tokens: int, segment: int = 1000) -> dict:
    state, generator = attention.initial_state(1), torch.Generator().manual_seed(0)
    for start in range(0, tokens, segment):
        n = min(segment, tokens - start)
        if attention.per_head:
            q, k, v = torch.randn(3, 1, HEADS, n, HEAD_DIM, generator=generator)
            _, state = attention.extend(q, k, v, state)
        else:
            state = attention(torch.randn(1, n, HIDDEN, generator=generator), state=state).state
    return state
