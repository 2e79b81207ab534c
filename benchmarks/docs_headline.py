"""The table of the README: a few figures, each with what it is compared with, from the JSON files in docs/results."""

from pathlib import Path
from typing import NamedTuple

from benchmarks.docs_results import ENERGY, difference
from benchmarks.docs_tables import DOCS, read, read_figures
from benchmarks.tables import markdown_table, significant

MOBILEVIT, VISION = "results/models/mobilevit_v2_default_allocator.json", "results/models/models.json"
LANGUAGE, ATTENTION = "results/models/compressive_performer.json", "results/attention/targets.json"


class Row(NamedTuple):
    """A line of the table, and the figure that it shows: a ratio, theirs over ours."""

    what: str
    against: str
    file: str
    group: str
    claim: str
    unit: str = "x as fast"


ROWS = [
    Row(
        "MobileViTv2-1.0, inference, 32 images of 256 px",
        "transformers' MobileViTV2, same weights",
        *(MOBILEVIT, "MobileViTv2-1.0 inference", "32 x 256 px"),
    ),
    Row(
        "the same, if the allocator keeps freed memory",
        "the same",
        *(VISION, "MobileViTv2-1.0 inference", "32 x 256 px"),
    ),
    Row(
        "HuggingGreenViT, training step, half of the patches",
        "transformers' ViT, all patches",
        *(VISION, "HuggingGreenViT training step", "98 of 196 patches, batch 32"),
    ),
    Row(
        "KerformerViT, forward+backward, 512 px",
        "transformers' ViT with SDPA",
        *(VISION, "KerformerViT forward+backward", "1025 tokens (512 px), batch 4"),
    ),
    Row(
        "causal `linear_elu`, forward+backward, 4,096 tokens",
        "PyTorch's SDPA",
        *(ATTENTION, "causal against SDPA", "linear_elu, N=4096"),
    ),
    Row(
        "causal linear attention, 64 features, 4,096 tokens",
        "performer-pytorch, same features",
        *(ATTENTION, "against performer-pytorch", "m=64, N=4096"),
    ),
    Row(
        "CompressivePerformer, a token after 8,192",
        "GPT-2 of the same size",
        *(LANGUAGE, "decode through generate() over GPT-2", "context 8192"),
    ),
    Row(
        "CompressivePerformer, peak memory of training",
        "performer-pytorch",
        *(LANGUAGE, "language model, peak memory of training", "performer-pytorch over ours"),
        "x less",
    ),
]


def headline(docs: Path = DOCS) -> str:
    figures = {
        (file, figure.group, figure.claim): figure
        for file in dict.fromkeys(row.file for row in ROWS)
        for figure in read_figures(docs, file)
    }
    lines = []
    for row in ROWS:
        value = figures[row.file, row.group, row.claim].value
        lines.append([row.what, row.against, f"{significant(value)}{row.unit}"])
    lines.append(energy_line(docs))
    return markdown_table(["what", "compared with", "measured"], lines)


def energy_line(docs: Path) -> list[str]:
    report = read(docs, ENERGY)
    ratio, points = (difference(report[kind], "full", "longer") for kind in ("differences", "score_differences"))
    measured = f"{ratio['effect']:.2f}x the energy, {points['effect']:+.1f} points of accuracy"
    noise = "" if points["adjusted"] <= 0.05 else " (within the noise)"
    return ["HuggingGreenViT, training on CIFAR-10, three seeds", "all patches in every batch", measured + noise]
