"""Benchmark the models against transformers' own at identical weights: make bench-models ARGS="--help"."""

import argparse
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from language_models import figures as compressive_performer
from measure import (
    Progress,
    crossover,
    describe_environment,
    environment,
    interleave,
    keep_freed_memory,
    limit_memory,
    markdown_table,
    positive,
    ratio,
    significant,
    text_table,
)
from targets import Figure
from transformers import MobileViTV2Config, MobileViTV2ForImageClassification, ViTConfig, ViTForImageClassification

from hf_efficient import (
    HuggingGreenViTConfig,
    HuggingGreenViTForImageClassification,
    KerformerViTConfig,
    KerformerViTForImageClassification,
    MobileViTv2Config,
    MobileViTv2ForImageClassification,
)
from hf_efficient.layers.patch_selection import HEURISTICS

DESCRIPTION = """
Time of the models against transformers' own, of the vision models at identical weights, in the same run:

  MobileViTv2      width 1.0 against transformers' MobileViTV2: inference (our model as `for_inference()` makes it,
                   theirs as it is) and a training step
  HuggingGreenViT  softmax attention and 138 or 98 of 196 patches (variance), selection included, against
                   transformers' ViT with SDPA on all patches; what scoring patches costs
  KerformerViT     against the same ViT of transformers with SDPA, forward and backward, at growing resolution
  CompressivePerformer  decoding and prefill against GPT-2 of equal size, training against the peers

Both ViTs have the shape of DeiT-tiny: patch 16, hidden 192, 12 layers, 3 heads. A training step is forward, backward
and AdamW. Everything is warmed up, then each contender has its turn in every round, and every round gives a ratio:
their time over ours. Shown are the median over the rounds and the quartiles. glibc is told to keep freed memory, for
both alike (--default-allocator does not); prompts and training of the language model are measured with and without
that, each contender in a process of its own, its peak memory as the median of as many processes as rounds.
Two cores and float32 are what the targets were set for.
"""
TINY = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
FAMILIES = ("mobilevit_v2", "hugginggreen_vit", "kerformer_vit", "compressive_performer")
Call = Callable[[], object]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES, metavar="NAME")
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--output", type=Path, default=Path("results/models"), metavar="DIR")
    parser.add_argument("--default-allocator", action="store_true", help="let glibc return memory after every call")
    parser.add_argument("--threads", type=positive, help="default: what PyTorch chooses")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    if not arguments.default_allocator:
        keep_freed_memory()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    limit_memory()
    arguments.output.mkdir(parents=True, exist_ok=True)
    machine = environment()
    steps = dict(zip(FAMILIES, (mobilevit_v2, hugginggreen_vit, kerformer_vit, compressive_performer), strict=True))
    progress, figures = Progress(0), []
    for family in arguments.families:
        figures += steps[family](arguments.rounds, progress)
    progress.close()
    write(figures, machine, arguments.output)
    return int(any(figure.verdict == "FAIL" for figure in figures))


def write(figures: list[Figure], machine: dict, output: Path) -> None:
    header, rows = ["what", "of", "measured", "target", "", ""], [[f.group, *f.cells()] for f in figures]
    heading = describe_environment(machine)
    print(heading, "", text_table(header, rows, "<<>><<"), sep="\n")
    record = {"environment": machine, "figures": [figure.record() for figure in figures]}
    (output / "models.json").write_text(json.dumps(record, indent=1) + "\n")
    (output / "models.md").write_text(f"{markdown_table(header, rows)}\n\nOn {heading}.\n")
    print(f"\nWritten: {output / 'models.json'}, {output / 'models.md'}")


def duel(group: str, claim: str, floor: float, theirs: Call, ours: Call, rounds: int, progress: Progress) -> Figure:
    """Their time over ours."""
    progress.say(f"{group}: {claim}")
    seconds = interleave({"theirs": theirs, "ours": ours}, rounds)
    found = ratio(seconds["theirs"], seconds["ours"])
    note = f"quartiles {significant(found.low)} {significant(found.high)}"
    return Figure(group, claim, floor, found.median, note=note)


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
    for batch, size, floor in ((32, 256, 2.2), (1, 256, 1.3), (32, 64, 1.15), (1, 64, 1.15)):
        pixels = torch.randn(batch, 3, size, size)
        calls = inference(theirs, pixels), inference(fast, pixels)
        yield duel("MobileViTv2-1.0 inference", f"{batch} x {size} px", floor, *calls, rounds, progress)
    pixels = torch.randn(32, 3, 256, 256)
    calls = training_step(theirs, pixels), training_step(ours, pixels)
    yield duel("MobileViTv2-1.0 training step", "32 x 256 px", 1.3, *calls, rounds, progress)


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
    for top_k, floor in ((138, 1.4), (98, 2.0)):
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
        note = f"quartiles {significant(share.low)} {significant(share.high)}"
        yield Figure(group, f"{heuristic}, 138 of 196 patches, batch 32", 0.03, share.median, at_most=True, note=note)


def kerformer_vit(rounds: int, progress: Progress) -> Iterator[Figure]:
    floors, tokens, speedups = {128: 0.0, 224: 1.0, 320: 1.0, 512: 1.5}, [], []
    for size, floor in floors.items():
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
    yield Figure(
        "KerformerViT ahead of SDPA", "from this many tokens on", 197, crossover(tokens, speedups), at_most=True
    )


if __name__ == "__main__":
    raise SystemExit(main())
