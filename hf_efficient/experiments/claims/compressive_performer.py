"""Compressive Performers, Tables 1 to 3: four language models at three levels of tokens; does memory help?"""

from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import CompressivePerformerForCausalLM
from ...data.text_streams import TextOptions, load_language_data
from ...training.evaluation import options_in, results_of
from ..timing import seconds_of
from .base import Claim, Statement, against
from .record import Record
from .tiny import PYDOCS
from .trained import Trained, one, run

LEVELS = ("char", "bpe", "word")
# System -> the paper's prediction time (ms), memory (GB), training and test perplexity, by level.
PAPER = {
    "compressive_transformer": {
        "char": (96, 8.6, 11.61, 13.078),
        "bpe": (32, 6.9, 209.69, 179.28),
        "word": (70.7, 6.9, 173.45, 102.36),
    },
    "performer": {
        "char": (166, 4.7, 9.57, 9.3378),
        "bpe": (140, 3.2, 230.93, 171.316),
        "word": (170, 3.1, 220.32, 109.334),
    },
    "conv": {"char": (51, 7.2, 6.26, 6.4314), "bpe": (55.375, 3.5, 128.4, 127.82), "word": (67.7, 3.6, 110.2, 75.896)},
    "autoencoder": {
        "char": (51, 6.8, 6.295, 6.025),
        "bpe": (55.05, 3.5, 133.32, 126.727),
        "word": (57, 3.6, 111.69, 75.141),
    },
}
BASES = ("compressive_transformer", "performer")
PPL, PREDICTION, NATS = "perplexity", "ms to predict", "nats per token, memory carried"
PLACES = (256, 1024, 4096)  # of a token in its text, from which on memory may hold more
# In equal time without a plateau to wait for, and without evaluations that would take longer than training.
PLAIN = {
    **{"eval_strategy": "no", "lr_scheduler_type": "linear", "lr_scheduler_kwargs": None, "warmup_steps": 0.03},
    **{"early_stopping_patience": None},
}
QUICK = (
    *PYDOCS,
    *("--model.segment_length", "16", "--memory_length", "16", "--compressed_memory_length", "8"),
    *("--dataset.segment_length", "32", "--length_schedule", "{0: 16, 0.7: 32}", "--dataset.vocab_size", "300"),
)
NO_MEMORY = ("--memory_length", "0", "--compressed_memory_length", "0", "--length_schedule", "null")


def arms(level: str) -> dict:
    performer, softmax = f"enwik8_performer_{level}_small", {"attention": "softmax", "attention_options": {}}
    found = {
        "compressive_transformer": run(f"enwik8_compressive_transformer_{level}_small", **PLAIN),
        "performer": run(performer, quick=NO_MEMORY, **PLAIN),
        "conv": run(f"enwik8_compressive_performer_{level}_small", **PLAIN),
        "autoencoder": run(f"enwik8_compressive_performer_{level}_small", compression="autoencoder", **PLAIN),
        "transformer_xl": run(f"enwik8_transformer_xl_{level}_small", **PLAIN),
        "gpt": run(performer, quick=NO_MEMORY, **softmax, **PLAIN),
    }
    if level == "char":
        found["mean"] = run(f"enwik8_compressive_performer_{level}_small", compression="mean", **PLAIN)
    return one(**found)


@torch.inference_mode()
def use_of_memory(folder: Path, quick: bool) -> dict[str, float]:
    """Of a trained model: how long it takes to predict a token, and what its memory is worth, by place in the text."""
    model = CompressivePerformerForCausalLM.from_pretrained(folder).eval()
    options = options_in(results_of(str(folder))["settings"]["dataset"], TextOptions)
    text = load_language_data(TextOptions(**{**options, "tokenizer": str(folder)})).test.tokens
    tokens = torch.from_numpy(text[: 1025 if quick else 16_385].astype("int64"))
    context = tokens[None, :512]
    predict = partial(model, context, logits_to_keep=1, use_cache=False)
    predict()
    found = {PREDICTION: 1000 * median(seconds_of(predict) for _ in range(2 if quick else 7))}
    carried, cut = (nats(model, tokens, carry) for carry in (True, False))
    found |= {NATS: float(carried.mean()), "nats per token, memory cut": float(cut.mean())}
    for low, high in zip((0, *PLACES), (*PLACES, len(carried)), strict=True):
        if low < len(carried):
            found[f"nats saved from token {low} on"] = float((cut - carried)[low:high].mean())
    return found


def nats(model: CompressivePerformerForCausalLM, tokens: Tensor, carry: bool) -> Tensor:
    """Of each token but the first, read segment by segment, with what was remembered or without."""
    memory, losses, length = None, [], 2 * model.config.segment_length
    for start in range(0, len(tokens) - 1, length):
        inputs = tokens[None, start : start + length][:, : len(tokens) - 1 - start]
        output = model(inputs, memory=memory if carry else None, use_cache=False)
        memory = output.memory
        targets = tokens[start + 1 : start + 1 + inputs.shape[1]]
        losses.append(F.cross_entropy(output.logits[0], targets, reduction="none"))
    return torch.cat(losses)


def without_memory(record: Record, part: Trained) -> None:
    """The same models, read with their memory cut, as arms of their own."""
    for name in part.arms:
        for seed, value in record.arm(part.label(name))["samples"]["nats per token, memory cut"].items():
            record.add(part.label(f"{name}, cut"), seed, {NATS: value})


def statements(level: str):
    for best in ("conv", "autoencoder"):
        for at, metric, says in ((3, PPL, "has a lower test perplexity"), (0, PREDICTION, "predicts sooner")):
            paper = {f"{level}/{x}": f"{PAPER[best][level][at]} against {PAPER[x][level][at]}" for x in BASES}
            words = f"{level}: the Compressive Performer ({best}) {says} than the {{}}"
            yield from against(paper, f"{level}/{best}", metric, words, paper, more=False, ratio=True)
        paper = f"{PAPER[best][level][1]} against {PAPER[BASES[0]][level][1]} GB"
        yield Statement(
            f"{level}: it ({best}) takes less memory than the Compressive Transformer",
            "peak_memory",
            f"{level}/{BASES[0]}",
            f"{level}/{best}",
            more=False,
            ratio=True,
            paper=paper,
        )
        yield Statement(
            f"{level}: its memory ({best}) helps to predict",
            NATS,
            f"{level}/{best}, cut",
            f"{level}/{best}",
            more=False,
        )


CLAIM = Claim(
    name="compressive_performer",
    source="Compressive Performers (Ragupathi et al. 2021), Tables 1 to 3",
    says=(
        "With convolutions or an autoencoder for compression, the Compressive Performer predicts sooner, takes less "
        "memory and has a lower perplexity than the Compressive Transformer and the Performer, on characters, parts "
        "of words and words."
    ),
    figures="test perplexity, characters: 13.1, 9.34, 6.43 (convolution), 6.03 (autoencoder)",
    decided=(
        "Small models on the first 4 MB of enwik8 in equal time. Prediction: the next token after 512, read at once, "
        "one thread. Memory is that of the whole training process. What memory is worth: 16,384 tokens of the test "
        "split read with it and with it cut after each two segments. Transformer-XL, a GPT and mean compression stand "
        "beside."
    ),
    parts=tuple(
        Trained(
            level,
            arms(level),
            "time",
            "1.2min",
            quick=QUICK,
            data=("enwik8",),
            after=use_of_memory,
            derived=without_memory,
            beside=1.0 if level == "char" else 0.5,
        )
        for level in LEVELS
    ),
    statements=tuple(statement for level in LEVELS for statement in statements(level)),
    shown={
        **{PPL: "test perplexity", "train_loss": "training loss", "bits_per_byte": "bits per byte"},
        **{PREDICTION: PREDICTION, "peak_memory": "MB of the process", NATS: "nats, memory carried"},
        **{f"nats saved from token {n} on": f"saved by memory from token {n} on" for n in (0, *PLACES)},
    },
)
