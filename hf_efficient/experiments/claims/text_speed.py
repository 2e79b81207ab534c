"""Kerformer, Table 7: steps per second of classifiers of texts by bytes, in training and in inference."""

from collections.abc import Callable
from functools import partial

import torch

from ... import KerformerTextConfig, KerformerTextForSequenceClassification
from .base import Claim, against
from .timed import Case, Timed

# Mechanism -> the paper's steps per second in inference and in training at 1k, 2k, 3k, 4k; None is out of memory.
PAPER = {
    "softmax": ((25.42, 7.85, None, None), (6.91, 2.19, None, None)),
    "local": ((57.69, 33.21, 23.32, 17.80), (13.42, 6.61, 4.35, 3.10)),
    "lsh": ((44.23, 21.60, 12.75, 8.35), (11.60, 5.01, 2.96, 1.97)),
    "bigbird": ((20.92, 11.53, 8.14, 6.12), (6.50, 3.21, 2.09, 1.55)),
    "linear_elu": ((67.81, 38.22, 26.30, 19.92), (11.88, 5.56, 3.54, 2.49)),
    "performer": ((74.20, 42.35, 29.53, 22.43), (14.23, 6.50, 4.13, 2.93)),
    "longformer": ((23.02, 6.33, None, None), (4.42, 1.31, None, None)),
    "dct": ((56.21, 34.21, 22.85, 20.51), (11.58, 5.95, 3.92, 2.32)),
    "kerformer": ((57.42, 33.15, 21.45, 17.13), (11.34, 5.58, 3.57, 2.55)),
}
BEST, SLOWER, FASTER = "kerformer", ("softmax", "lsh", "bigbird", "longformer"), ("linear_elu", "performer")
PASSES, LENGTHS = ("inference", "training"), (1024, 2048, 3072, 4096)
SIZE = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "num_hidden_layers": 4}
TINY = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 1}


def call(name: str, length: int, what: str, size: dict) -> Callable[[], object]:
    """A step on one text: forward, or forward, backward and AdamW."""
    torch.manual_seed(0)
    fields = {**size, "max_position_embeddings": length, "hidden_dropout_prob": 0.0}
    model = KerformerTextForSequenceClassification(KerformerTextConfig(**fields, attention=name))
    text = torch.randint(256, (1, length), generator=torch.Generator().manual_seed(0))
    if what == "inference":
        model.eval()
        return torch.inference_mode()(partial(model, input_ids=text))
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        model(input_ids=text, labels=torch.zeros(1, dtype=torch.long)).loss.backward()
        optimizer.step()

    return step


def cases(quick: bool) -> list[Case]:
    lengths, size = ((64,), TINY) if quick else (LENGTHS, SIZE)
    return [
        Case(f"{what}, N={length:,}", {name: partial(call, name, length, what, size) for name in PAPER})
        for length in lengths
        for what in PASSES
    ]


def statements():
    """Kerformer against those that its row is ahead of, then against those that the text names."""
    for column, what in enumerate(PASSES):
        for at, length in ((1, 2048), (3, 4096)):
            metric = f"per second, {what}, N={length:,}"
            own = PAPER[BEST][column][at]
            paper = {name: f"{own} against {row[column][at] or 'out of memory'}" for name, row in PAPER.items()}
            says = f"{what}, {length:,} bytes: Kerformer is faster than {{}}"
            yield from against(SLOWER, BEST, metric, says, paper, more=True, ratio=True)
            yield from against(FASTER, BEST, metric, says + ", as the text says", paper, more=True, ratio=True)


CLAIM = Claim(
    name="text_speed",
    source="Kerformer (Gan et al. 2023), section 5.4, Table 7",
    says=(
        "Kerformer trains and infers faster than the Transformer, Reformer, BigBird and Longformer at 2k to 4k bytes, "
        'and has "better overall efficiency compared to other linear" variants.'
    ),
    figures="4k: 17.13 steps a second in inference, 2.55 in training; by the same table linear ones are faster",
    decided=(
        "Texts of bytes, the size of the arena's task Text (width 256, 4 heads, 4 layers), one text at a time, one "
        "thread, in turns. softmax is PyTorch's fused kernel, which needs no N x N matrix."
    ),
    parts=(Timed("", cases, arms=len(PAPER), minutes=0.3, figures="per second"),),
    statements=tuple(statements()),
    shown={f"per second, {what}, N={n:,}": f"{what}, {n:,}" for what in PASSES for n in LENGTHS},
)
