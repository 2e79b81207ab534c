"""How the language model's floors are measured: decoding and prefill against GPT-2, training against the peers.

All are 6 layers of width 512 with 8 heads and a vocabulary of bytes; ours has 256 features, segments of 768 tokens,
768 recent and 1152 compressed slots of 4 tokens each. Prompts and training are measured in processes of their own,
with glibc's allocator as it is and told to keep freed memory.
"""

import copy
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.command_line import Progress
from benchmarks.floors import (
    DECODE_FLOORS,
    PREFILL_FLOOR,
    STATE_GROWTH,
    TOKEN_GROWTH,
    TRAINING_FLOORS,
    TRAINING_MEMORY_FLOORS,
    Figure,
)
from benchmarks.memory import freed_memory, peak_memory
from benchmarks.own_process import Call, OwnProcess
from benchmarks.peers import missing
from benchmarks.timing import ratio
from benchmarks.workloads import TRAINING, Contender
from hf_efficient import CompressivePerformerConfig, CompressivePerformerForCausalLM
from hf_efficient.experiments.timing import interleave, seconds_of

VOCABULARY, WIDTH, DEPTH, HEADS, SEGMENT, FEATURES = 256, 512, 6, 8, 768, 256
FEW, MANY, NEW_TOKENS, PREFILL = 128, 20_000, 128, 8192
ALLOCATORS = {False: "", True: ", freed memory kept"}
WARM_STEPS = 4  # until recent and compressed memory are in use


def ours() -> CompressivePerformerForCausalLM:
    torch.manual_seed(0)
    return CompressivePerformerForCausalLM(CompressivePerformerConfig(attention_options={"num_features": FEATURES}))


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"n_embd": WIDTH, "n_layer": DEPTH, "n_head": HEADS, "n_positions": MANY + 1000}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=None, **sizes))


def tokens(length: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))


def figures(rounds: int, progress: Progress) -> Iterator[Figure]:
    yield from decoding(rounds, progress)
    yield from training(rounds, progress)


class Decoder:
    """Greedy `generate()` from a context that was read before."""

    def __init__(self, model, context: int):
        self.model, self.text = model.eval(), tokens(context)
        with torch.no_grad():
            self.cache = model(self.text[:, :-1], use_cache=True, logits_to_keep=1).past_key_values

    def seconds(self) -> float:
        """Per token"""
        cache = copy.deepcopy(self.cache)
        options = {"past_key_values": cache, "max_new_tokens": NEW_TOKENS, "do_sample": False}
        return seconds_of(lambda: self.model.generate(self.text, **options)) / NEW_TOKENS

    def state_bytes(self) -> int:
        kept = [layer.memory for layer in self.cache.layers]
        flat = [x for memory in kept for x in memory if isinstance(x, torch.Tensor)]
        flat += [x for memory in kept for x in memory.state.values()]
        return sum(x.nbytes for x in flat)


def decoding(rounds: int, progress: Progress) -> Iterator[Figure]:
    theirs, mine = gpt2(), ours()
    for context, floor in DECODE_FLOORS.items():
        progress.say(f"decoding after {context} tokens")
        pair = Decoder(theirs, context), Decoder(mine, context)
        found = ratio(*compare(pair, rounds))
        claim = f"context {context}"
        yield Figure.of_ratio("decode through generate() over GPT-2", claim, floor, found)
    progress.say(f"decoding after {MANY} tokens")
    few, many = Decoder(mine, FEW), Decoder(mine, MANY)
    found = ratio(*compare((many, few), rounds))
    claim = f"after {MANY} tokens over {FEW}"
    yield Figure.of_ratio("time per generated token", claim, TOKEN_GROWTH, found, at_most=True)
    full = 9 * SEGMENT + FEW  # tokens after which both memories are
    grown = many.state_bytes() / Decoder(mine, full).state_bytes()
    yield Figure("size of the state", f"after {MANY} tokens over {full}", STATE_GROWTH, grown, at_most=True)
    progress.say(f"prefill of {PREFILL} tokens")
    contenders = partial(prefill, gpt2), partial(prefill, ours)
    yield from duels("prefill over GPT-2", f"{PREFILL} tokens", PREFILL_FLOOR, *contenders, rounds)


def duels(
    group: str, claim: str, floor: float, theirs: Callable[[], Call], mine: Callable[[], Call], rounds: int
) -> Iterator[Figure]:
    """Their time over ours, each in a process of its own, with both ways of treating freed memory."""
    for keep, remark in ALLOCATORS.items():
        with OwnProcess(theirs, keep) as they, OwnProcess(mine, keep) as we:
            seconds = interleave({"theirs": they, "ours": we}, rounds)
        found = ratio(seconds["theirs"], seconds["ours"])
        yield Figure.of_ratio(group, claim + remark, floor, found)


def prefill(make) -> Call:
    model, text = make().eval(), tokens(PREFILL)

    def read():
        with torch.no_grad():
            model(text, use_cache=True, logits_to_keep=1)

    return read


def compare(pair: tuple[Decoder, Decoder], rounds: int) -> tuple[list[float], list[float]]:
    """Seconds per token of both, taken in turns, each beginning every other round; the first round warms up."""
    taken = ([], [])
    for i in range(rounds + 1):
        for which in (0, 1) if i % 2 else (1, 0):
            taken[which].append(pair[which].seconds())
    return taken[0][1:], taken[1][1:]


class TrainingStep:
    """Forward, backward and the Trainer's AdamW on one segment after another, memory carried along."""

    def __init__(self, forward, parameters, length: int):
        self.forward, self.text, self.memory = forward, tokens(length + 1), None
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-6, fused=True)

    def train(self) -> None:
        loss, self.memory = self.forward(self.text[:, :-1], self.text[:, 1:], self.memory)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def infer(self) -> None:  # what is measured is training; this fills the memories
        for _ in range(WARM_STEPS):
            self.train()


def our_step(length: int, causal: bool = True) -> TrainingStep:
    model = ours().train()

    def forward(inputs, targets, memory):
        output = model(inputs, shift_labels=targets, labels=targets, memory=memory, use_cache=False)
        return output.loss, output.memory

    return TrainingStep(forward, model.parameters(), length)


def compressive_transformer_step(length: int, causal: bool = True) -> TrainingStep:
    from compressive_transformer_pytorch import CompressiveTransformer

    model = CompressiveTransformer(
        num_tokens=VOCABULARY,
        dim=WIDTH,
        depth=DEPTH,
        heads=HEADS,
        seq_len=SEGMENT,
        mem_len=768,
        cmem_len=1152,
        cmem_ratio=4,
        gru_gated_residual=False,
    ).train()

    def forward(inputs, targets, memory):
        logits, memory, auxiliary = model(inputs, memories=memory)
        return torch.nn.functional.cross_entropy(logits.mT, targets) + auxiliary, memory

    return TrainingStep(forward, model.parameters(), length)


def performer_step(length: int, causal: bool = True) -> TrainingStep:
    from performer_pytorch import PerformerLM

    model = PerformerLM(
        num_tokens=VOCABULARY,
        dim=WIDTH,
        depth=DEPTH,
        heads=HEADS,
        dim_head=WIDTH // HEADS,
        max_seq_len=SEGMENT,
        nb_features=FEATURES,
        causal=True,
    ).train()

    def forward(inputs, targets, memory):
        return torch.nn.functional.cross_entropy(model(inputs).mT, targets), None

    return TrainingStep(forward, model.parameters(), length)


def warm_training(make) -> Call:
    step = make(SEGMENT)
    step.infer()
    return step.train


PEER_STEPS = {"compressive-transformer-pytorch": compressive_transformer_step, "performer-pytorch": performer_step}


def training(rounds: int, progress: Progress) -> Iterator[Figure]:
    for name, make in PEER_STEPS.items():
        speed, lighter = TRAINING_FLOORS[name], TRAINING_MEMORY_FLOORS[name]
        claims = [f"over {name}", f"{name} over ours"]
        if absent := missing(name):
            yield Figure("language model, training step", claims[0], speed, None, note=absent)
            yield Figure("language model, peak memory of training", claims[1], lighter, None, note=absent)
            continue
        progress.say(f"training step against {name}")
        steps = partial(warm_training, make), partial(warm_training, our_step)
        yield from duels("language model, training step", claims[0], speed, *steps, rounds)
        for keep, remark in ALLOCATORS.items():
            yield peaks(claims[1] + remark, lighter, make, keep, rounds)


def peaks(claim: str, floor: float, theirs: Callable, keep: bool, rounds: int) -> Figure:
    """Their peak memory in training over ours, medians of several processes: how freed memory comes to lie on the heap
    is another thing in each, and decides a third of performer-pytorch's peak."""
    group = "language model, peak memory of training"
    with freed_memory(keep):
        found = [
            [peak_memory(Contender(claim, "ours", make), SEGMENT, True) for _ in range(rounds)]
            for make in (theirs, our_step)
        ]
    if failures := [peak for peak in chain(*found) if isinstance(peak, str)]:
        return Figure(group, claim, floor, None, note=failures[0])
    sides = [[peak[TRAINING] / 1e6 for peak in side] for side in found]
    more, less = map(statistics.median, sides)
    spans = " over ".join(f"{statistics.median(x):.0f} MB ({min(x):.0f} to {max(x):.0f})" for x in sides)
    return Figure(group, claim, floor, more / less, note=spans)
