"""Benchmark classifiers of texts, the paper's Table 7 (Gan et al. 2023): make bench-text ARGS="--help"."""

import argparse
import statistics
import sys
from functools import partial

import torch
from transformers import BertConfig, BertForSequenceClassification

from benchmarks.command_line import Progress, benchmark_parser, positive, prepare
from benchmarks.models import inference, training_step
from benchmarks.record import describe_run, run_record
from benchmarks.reports import curves, write_files
from benchmarks.tables import markdown_table, significant, text_table
from benchmarks.timing import race
from benchmarks.workloads import FORWARD, TRAINING, Contender
from hf_efficient import KerformerTextConfig, KerformerTextForSequenceClassification
from hf_efficient.attention import list_attentions

DESCRIPTION = """
Steps per second of classifiers of texts by bytes, at growing length: KerformerText with every mechanism that fits it,
beside transformers' BERT of the same size (with SDPA) in the same run. A training step is forward, backward and AdamW;
"forward" is without gradients.

The size is that of the Long Range Arena's task Text: width 256, 4 heads, MLP 1024, and 4 layers unless told otherwise.
Texts have one length, so nothing is padded. Dropout is off for all, since with it SDPA has no fast way on CPUs. Each
contender has its turn in every round, and every round gives a ratio, BERT's time over the contender's: 2 is twice as
fast. Shown are the median, and in brackets the quartiles; steps per second depend on what else the machine does.
"""
BERT = "BERT"
SIZE = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "vocab_size": 258}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FITTING = [name for name in list_attentions() if not KerformerTextConfig().misfit(name)]


class Steps:
    """A model and a batch of texts: what `race` times."""

    def __init__(self, model: torch.nn.Module, input_ids: torch.Tensor):
        self.model, self.input_ids = model, input_ids
        self._train = training_step(model, input_ids)

    def train(self) -> None:
        self.model.train()
        self._train()

    def infer(self) -> None:
        inference(self.model, self.input_ids)()


def steps(name: str, layers: int, batch: int, length: int, causal: bool = False) -> Steps:
    fields = {**SIZE, **NO_DROPOUT, "num_hidden_layers": layers, "max_position_embeddings": length}
    torch.manual_seed(0)
    if name == BERT:
        model = BertForSequenceClassification(BertConfig(**fields))
    else:
        model = KerformerTextForSequenceClassification(KerformerTextConfig(**fields, attention=name))
    return Steps(model, torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(0)))


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = benchmark_parser("text", DESCRIPTION, "results/text")
    parser.add_argument(
        "--lengths", type=positive, nargs="+", metavar="N", default=[1024, 2048, 3072, 4096], help="default: 1k to 4k"
    )
    parser.add_argument(
        "--mechanisms", nargs="+", choices=FITTING, metavar="NAME", default=FITTING, help=f"of {', '.join(FITTING)}"
    )
    parser.add_argument("--layers", type=positive, default=4, help="default: 4")
    parser.add_argument("--batch", type=positive, default=1, help="texts at a time (default: 1)")
    parser.add_argument("--rounds", type=positive, default=5, help="default: 5; calls of several seconds get 3")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    arguments = parse_arguments(argv)
    prepare(arguments)
    size = {"layers": arguments.layers, "batch": arguments.batch}
    results = {"environment": run_record("text", argv), **size, "rows": [], "left_out": []}
    names = (BERT, *arguments.mechanisms)
    contenders = [Contender(name, BERT, partial(steps, name, *size.values())) for name in names]
    progress = Progress(len(contenders) * len(arguments.lengths) * 2 * arguments.rounds)
    for length in sorted(set(arguments.lengths)):
        progress.say(f"N={length}")
        rows, left_out = race(contenders, length, False, arguments.rounds, after_call=progress.advance)
        results["rows"] += rows
        results["left_out"] += left_out
    progress.close()
    heading = describe_run(results["environment"])
    print(heading, *(f"\n{title(name)}\n{text_table(*speed_table(results, name))}" for name in PASSES), sep="\n")
    for row in results["left_out"]:
        print(f"left out: {row['contender']} at N={row['length']}: {row['reason']}")
    write_files("text", results, f"{markdown(results)}\n\nOn {heading}.", arguments.output)
    return 0


PASSES = (TRAINING, FORWARD)


def title(name: str) -> str:
    step = "A training step" if name == TRAINING else "Inference"
    return f"{step}: speed against transformers' BERT, and steps per second"


def markdown(results: dict) -> str:
    return "\n\n".join(f"{title(name)}.\n\n{markdown_table(*speed_table(results, name))}" for name in PASSES)


def speed_table(results: dict, name: str) -> tuple[list[str], list[list[str]]]:
    """Of each contender and length: times as fast as BERT, steps per second."""
    found = curves(results, "bidirectional", name)
    lengths = sorted({length for rows in found.values() for length in rows})
    table = []
    for contender, rows in found.items():
        cells = [cell(rows[length]) if length in rows else "–" for length in lengths]
        table.append([contender if contender == BERT else f"`{contender}`", *cells])
    return ["", *(f"N={length}" for length in lengths)], table


def cell(row: dict) -> str:
    speedup, rate = row["speedup"], significant(1 / statistics.median(row["seconds"]))
    if row["contender"] == row["against"]:
        return f"{rate}/s"
    shown = significant(speedup["median"])
    return f"{shown}x [{significant(speedup['low'])} {significant(speedup['high'])}], {rate}/s"


if __name__ == "__main__":
    raise SystemExit(main())
