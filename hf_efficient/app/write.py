"""A language model that writes, watched: its text, the state of its memory, the time that each token took.

Beside it runs a GPT-2 of the same size with random weights: its time and its memory don't depend on what the weights
are. Both read the same number of tokens, in turns.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from ..errors import CommandError
from .checks import within
from .clock import clock
from .shelf import Shown

MOST_CHARACTERS = 4_000  # of a prompt
MOST_TOKENS = 4_000  # written at a time
MOST_READ = 8_192  # of a text in all; GPT-2 has a table of so many positions
EVERY = 0.3  # seconds between two looks at it


class Slots(NamedTuple):
    name: str
    filled: int
    room: int  # 0: the model has none


class Seen(NamedTuple):
    """How far it has come."""

    text: str
    read: int  # tokens, those of the prompt included
    slots: list[Slots]
    ours: list[tuple[int, float]]  # tokens read, milliseconds of the next
    theirs: list[tuple[int, float]]
    our_bytes: int  # of memory, or of keys and values
    their_bytes: int


@dataclass
class Session:
    """One visitor's text and what the models remember of it."""

    model: str | None = None
    ids: list[int] = field(default_factory=list)  # that were read
    pending: list[int] = field(default_factory=list)  # written, and not yet read
    cache: object = None
    twin_cache: object = None
    ours: list[tuple[int, float]] = field(default_factory=list)
    theirs: list[tuple[int, float]] = field(default_factory=list)

    def begin(self, model: str | None = None) -> None:
        """Forgets everything."""
        self.__init__(model)


def write(
    shown: Shown, session: Session, prompt: str, tokens: int, temperature: float, seed: int, beside: bool
) -> Iterator[Seen]:
    """Goes on from what the session holds and then the prompt, and tells how far it has come a few times a second."""
    tokens = within("The number of tokens", tokens, 1, MOST_TOKENS)
    temperature = within("The temperature", temperature, 0, 2, whole=False)
    generator = torch.Generator().manual_seed(within("The seed", seed, 0, 2**32 - 1))
    if session.model != shown.name:
        session.begin(shown.name)
    given = read_prompt(shown, session, prompt)
    if (total := len(session.ids) + len(given) + tokens) > most_read(shown):
        raise CommandError(
            f"That would make {total:,} tokens; {most_read(shown):,} are the most that is read here. Begin a new text."
        )
    twin = gpt2_like(*size_of(shown)) if beside else None
    if twin is None:
        session.twin_cache, session.theirs = None, []
    elif session.twin_cache is None and session.ids:  # it was not there before
        session.twin_cache = take(twin, session.ids, None).cache
    session.pending, said = given, 0.0
    for _ in range(tokens):
        session.pending = [step(shown, session, session.pending, twin, temperature, generator)]
        if time.monotonic() - said > EVERY:
            yield look(shown, session)  # the visitor may stop here
            said = time.monotonic()
    yield look(shown, session)


def read_prompt(shown: Shown, session: Session, prompt: str) -> list[int]:
    prompt = prompt if isinstance(prompt, str) else ""
    if len(prompt) > MOST_CHARACTERS:
        raise CommandError(f"The prompt has {len(prompt):,} characters; {MOST_CHARACTERS:,} are the most.")
    ids = session.pending + (shown.pipe.tokenizer(prompt)["input_ids"] if prompt else [])
    if not ids:
        raise CommandError("The prompt is empty: write at least one character to go on from.")
    return ids


class Taken(NamedTuple):
    logits: torch.Tensor  # of the next token (V,)
    cache: object
    milliseconds: float


@torch.no_grad()
def take(model, ids: list[int], cache) -> Taken:
    """Reads tokens."""
    start = clock()
    output = model(torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1)
    return Taken(output.logits[0, -1], output.past_key_values, 1e3 * (clock() - start))


def step(shown: Shown, session: Session, ids: list[int], twin, temperature: float, generator) -> int:
    """Reads tokens, with both models, and returns the next one."""
    taken = take(shown.model, ids, session.cache)
    session.cache = taken.cache
    session.ids += ids
    if len(ids) == 1:
        session.ours.append((len(session.ids), taken.milliseconds))
    if twin is not None:
        other = take(twin, ids, session.twin_cache)
        session.twin_cache = other.cache
        if len(ids) == 1:
            session.theirs.append((len(session.ids), other.milliseconds))
    return sample(taken.logits, temperature, generator)


def sample(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    shares = (logits.float() / temperature).softmax(-1)
    return int(torch.multinomial(shares, 1, generator=generator))


def look(shown: Shown, session: Session) -> Seen:
    text = shown.pipe.tokenizer.decode(session.ids + session.pending, skip_special_tokens=True)
    return Seen(
        text,
        len(session.ids),
        slots(shown, len(session.ids)),
        list(session.ours),
        list(session.theirs),
        size_in_memory(session.cache),
        size_in_memory(session.twin_cache),
    )


def slots(shown: Shown, read: int) -> list[Slots]:
    """How full the memory is after so many tokens."""
    lengths = getattr(getattr(shown.model, "model", None), "lengths", None)
    if lengths is None:
        return [Slots("keys and values", read, most_read(shown))]
    return [
        Slots("open segment", lengths.open_after(read), lengths.segment),
        Slots("recent memory", lengths.recent_after(read), lengths.recent),
        Slots("compressed memory", lengths.compressed_after(read), lengths.compressed),
    ]


def size_in_memory(cache) -> int:
    """Bytes of all tensors that a cache keeps."""
    if cache is None:
        return 0
    found: dict[int, int] = {}
    pending = [vars(layer) for layer in cache.layers]
    while pending:
        held = pending.pop()
        if isinstance(held, torch.Tensor):
            found[held.untyped_storage().data_ptr()] = held.untyped_storage().nbytes()
        elif isinstance(held, dict):
            pending += held.values()
        elif isinstance(held, list | tuple):
            pending += held
    return sum(found.values())


def most_read(shown: Shown) -> int:
    return min(MOST_READ, getattr(shown.config, "max_position_embeddings", MOST_READ))


def size_of(shown: Shown) -> tuple[int, int, int, int, int]:
    config = shown.config
    return (
        config.hidden_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        config.vocab_size,
    )


@lru_cache(maxsize=4)
def gpt2_like(width: int, layers: int, heads: int, inner: int, vocabulary: int) -> GPT2LMHeadModel:
    """A GPT-2 of these sizes with random weights, which is enough to be timed."""
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_inner": inner, "vocab_size": vocabulary}
    config = GPT2Config(**sizes, n_positions=MOST_READ + 1, bos_token_id=None, eos_token_id=None)
    return GPT2LMHeadModel(config).eval()


def smoothed(times: list[tuple[int, float]], points: int = 60) -> list[tuple[float, float]]:
    """At most so many points, each the median of as many tokens: what else the machine does shows as spikes."""
    size = max(16, -(-len(times) // points))
    groups = [times[i : i + size] for i in range(0, len(times), size)]
    if len(groups) > 1 and len(groups[-1]) < size / 2:
        groups.pop()
    middle = [(group[len(group) // 2][0], sorted(ms for _, ms in group)[len(group) // 2]) for group in groups]
    return [(float(read), ms) for read, ms in middle]
