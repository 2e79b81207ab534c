"""Benchmark the models against transformers' own at identical weights: make bench-models ARGS="--help"."""

import argparse
import copy
import sys
from collections.abc import Callable, Iterator

import torch
from transformers import MobileViTV2Config, MobileViTV2ForImageClassification, ViTConfig, ViTForImageClassification

from benchmarks.command_line import Progress, benchmark_parser, positive, prepare
from benchmarks.floors import (
    GREEN_FLOORS,
    KERFORMER_AHEAD,
    KERFORMER_FLOORS,
    MOBILEVIT_INFERENCE,
    MOBILEVIT_TRAINING,
    SCORING_SHARE,
    SHORT_FLOOR,
    Figure,
)
from benchmarks.language_model import figures as compressive_performer
from benchmarks.record import run_record
from benchmarks.reports import write_figures
from benchmarks.timing import crossover, ratio
from hf_efficient import (
    HuggingGreenViTConfig,
    HuggingGreenViTForImageClassification,
    KerformerViTConfig,
    KerformerViTForImageClassification,
    MobileViTv2Config,
    MobileViTv2ForImageClassification,
)
from hf_efficient.experiments.timing import interleave
from hf_efficient.layers.patch_selection import HEURISTICS

DESCRIPTION = """
Time of the models against transformers' own, of the vision models at identical weights, in the same run:

  MobileViTv2      width 1.0 against transformers' MobileViTV2: inference (our model as `for_inference()` makes it,
                   theirs as it is) and a training step
  HuggingGreenViT  softmax attention and 138 or 98 of 196 patches (variance), selection included, against
                   transformers' ViT with SDPA on all patches; what scoring patches costs
  KerformerViT     against the same ViT of transformers with SDPA, forward and backward, at growing resolution; and a
                   ViT for CIFAR-10 (32 px, 65 tokens, 4 layers of 4 heads of 24, batch 128) with each linear mechanism
                   against itself with softmax attention
  CompressivePerformer  decoding and prefill against GPT-2 of equal size, training against the peers

Both ViTs have the shape of DeiT-tiny: patch 16, hidden 192, 12 layers, 3 heads. A training step is forward, backward
and AdamW. Everything is warmed up, then each contender has its turn in every round, and every round gives a ratio:
their time over ours. Shown are the median over the rounds and the quartiles. glibc is told to keep freed memory, for
both alike (--default-allocator does not); prompts and training of the language model are measured with and without
that, each contender in a process of its own, its peak memory as the median of as many processes as rounds.
Two cores and float32 are what the targets were set for. The exit code is 1 if one is missed.
"""
TINY = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
CIFAR = {"image_size": 32, "patch_size": 4, "hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
LINEAR = ("linear_elu", "efficient", "xcit", "kerformer", "cosformer", "ecoformer", "rfa", "performer")
Call = Callable[[], object]


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = benchmark_parser("models", DESCRIPTION, "results/models")
    names = list(FAMILIES)
    parser.add_argument(
        "--families", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {', '.join(names)}"
    )
    parser.add_argument("--rounds", type=positive, default=7, help="default: 7")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    arguments = parse_arguments(argv)
    prepare(arguments)
    run, progress, figures = run_record("models", argv), Progress(0), []
    for family in arguments.families:
        figures += FAMILIES[family](arguments.rounds, progress)
    progress.close()
    write_figures("models", run, figures, arguments.output)
    return int(any(figure.verdict == "FAIL" for figure in figures))


def duel(group: str, claim: str, floor: float, theirs: Call, ours: Call, rounds: int, progress: Progress) -> Figure:
    """Their time over ours."""
    progress.say(f"{group}: {claim}")
    seconds = interleave({"theirs": theirs, "ours": ours}, rounds)
    return Figure.of_ratio(group, claim, floor, ratio(seconds["theirs"], seconds["ours"]))


def inference(model: torch.nn.Module, pixel_values: torch.Tensor) -> Call:
    model.eval()

    def call():
        with torch.inference_mode():
            model(pixel_values)

    return call


def training_step(model: torch.nn.Module, pixel_values: torch.Tensor, step: bool = True) -> Call:
    model.train()
    labels = torch.arange(len(pixel_values)) % model.config.num_labels
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def call():
        model(pixel_values, labels=labels).loss.backward()
        if step:
            optimizer.step()
        optimizer.zero_grad()

    return call


def mobilevit_v2(rounds: int, progress: Progress) -> Iterator[Figure]:
    theirs = MobileViTV2ForImageClassification(MobileViTV2Config(num_labels=1000))
    ours = MobileViTv2ForImageClassification(MobileViTv2Config(num_labels=1000))
    ours.load_state_dict(theirs.state_dict())
    fast = ours.eval().for_inference()
    for (batch, size), floor in MOBILEVIT_INFERENCE.items():
        pixels = torch.randn(batch, 3, size, size)
        calls = inference(theirs, pixels), inference(fast, pixels)
        yield duel("MobileViTv2-1.0 inference", f"{batch} x {size} px", floor, *calls, rounds, progress)
    pixels = torch.randn(32, 3, 256, 256)
    calls = training_step(theirs, pixels), training_step(ours, pixels)
    yield duel("MobileViTv2-1.0 training step", "32 x 256 px", MOBILEVIT_TRAINING, *calls, rounds, progress)


def vit(size: int = 224) -> ViTForImageClassification:
    return ViTForImageClassification(ViTConfig(**TINY, image_size=size, num_labels=1000))


def green(weights: dict, top_k: int, heuristic: str = "variance") -> HuggingGreenViTForImageClassification:
    config = HuggingGreenViTConfig(
        **TINY,
        num_labels=1000,
        attention="softmax",
        pooling="cls",
        heuristic=heuristic,
        top_k=top_k,
        prob=1.0,
        prob_schedule="constant",
        select_at_eval=True,
    )
    model = HuggingGreenViTForImageClassification(config)
    model.load_state_dict(weights, strict=False)  # the selector's counters are new
    return model


def hugginggreen_vit(rounds: int, progress: Progress) -> Iterator[Figure]:
    theirs = vit()
    for top_k, floor in GREEN_FLOORS.items():
        ours = green(theirs.state_dict(), top_k)
        for batch in (8, 32):
            pixels, claim = torch.randn(batch, 3, 224, 224), f"{top_k} of 196 patches, batch {batch}"
            calls = training_step(theirs, pixels), training_step(ours, pixels)
            yield duel("HuggingGreenViT training step", claim, floor, *calls, rounds, progress)
            calls = inference(theirs, pixels), inference(ours, pixels)
            yield duel("HuggingGreenViT inference", claim, floor, *calls, rounds, progress)
    pixels = torch.randn(32, 3, 224, 224)
    for heuristic in HEURISTICS:
        ours = green(theirs.state_dict(), 138, heuristic)
        selector, group = copy.deepcopy(ours.vit.selector).eval(), "patch scoring over a training step"
        progress.say(f"{group}: {heuristic}")
        calls = {"scoring": lambda selector=selector: selector(pixels), "step": training_step(ours, pixels)}
        seconds = interleave(calls, rounds)
        share = ratio(seconds["scoring"], seconds["step"])
        claim = f"{heuristic}, 138 of 196 patches, batch 32"
        yield Figure.of_ratio(group, claim, SCORING_SHARE, share, at_most=True)


def kerformer_vit(rounds: int, progress: Progress) -> Iterator[Figure]:
    tokens, speedups = [], []
    for size, floor in KERFORMER_FLOORS.items():
        theirs = vit(size)
        ours = KerformerViTForImageClassification(KerformerViTConfig(**TINY, image_size=size, num_labels=1000))
        ours.load_state_dict(theirs.state_dict(), strict=False)  # SE-K is new
        pixels, length = torch.randn(4, 3, size, size), (size // 16) ** 2 + 1
        calls = (training_step(model, pixels, step=False) for model in (theirs, ours))
        claim = f"{length} tokens ({size} px), batch 4"
        figure = duel("KerformerViT forward+backward", claim, floor, *calls, rounds, progress)
        tokens.append(length)
        speedups.append(figure.value)
        yield figure
    ahead = crossover(tokens, speedups)
    yield Figure("KerformerViT ahead of SDPA", "from this many tokens on", KERFORMER_AHEAD, ahead, at_most=True)
    group, pixels = "ViT of 65 tokens, training step", torch.randn(128, 3, 32, 32)
    progress.say(group)
    calls = {name: training_step(cifar_vit(name), pixels) for name in ("softmax", *LINEAR)}
    seconds = interleave(calls, rounds)
    for name in LINEAR:
        speedup = ratio(seconds["softmax"], seconds[name])
        yield Figure.of_ratio(group, f"{name} over softmax, batch 128", SHORT_FLOOR, speedup)


def cifar_vit(attention: str) -> KerformerViTForImageClassification:
    config = KerformerViTConfig(**CIFAR, intermediate_size=192, stem="conv", attention=attention, num_labels=10)
    return KerformerViTForImageClassification(config)


FAMILIES = {
    "mobilevit_v2": mobilevit_v2,
    "hugginggreen_vit": hugginggreen_vit,
    "kerformer_vit": kerformer_vit,
    "compressive_performer": compressive_performer,
}


if __name__ == "__main__":
    raise SystemExit(main())
