"""Benchmark what data cost a training step: make bench-data ARGS="--help"."""

import argparse
import copy
import io
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.command_line import Progress, benchmark_parser, positive, prepare
from benchmarks.floors import CACHED_IMAGES_PER_SECOND, ON_DEMAND_STEP, STREAMED_STEP, Figure
from benchmarks.record import run_record
from benchmarks.reports import write_figures
from benchmarks.timing import ratio
from benchmarks.training import images_per_second
from hf_efficient import MobileViTv2Config, MobileViTv2ForImageClassification
from hf_efficient.data import image_rows
from hf_efficient.data.augmentation import Augmentation
from hf_efficient.data.collators import take_batch
from hf_efficient.data.folders import CACHE_FOLDER
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.data.image_sets import load_images

DESCRIPTION = """

How much longer a training step of MobileViTv2-0.5 takes where two workers decode its images when they are needed,
against images that were decoded once:

  on demand  at 128 pixels, of JPEGs of 500x375, as ImageNet's are
  streaming  at 64 pixels, of JPEGs of that size
  images     how many images a second the cached path makes at 32 pixels, flipped and cropped, on all cores

Images are made from a seed and stored in parquet; nothing is downloaded. Row groups are read again and again, as of a
data set that is larger than memory. Both sides train copies of one model and take turns; a turn begins with steps that
are not timed, until the workers are as far ahead as they get. Workers are other processes, so times are those of a
clock on the wall; with --threads 1 on two cores they have a core beside the one that trains.
"""
WORKERS, AHEAD = 2, 2  # and the batches that each has ready
CLASSES, PICTURES = ["a", "b"], 64  # different ones
GROUP = 32  # images that are read together
SMALL = (32, 32)


class Case(NamedTuple):
    claim: str
    bound: float
    pixels: int  # of the model's images
    source: tuple[int, int]  # height and width of the JPEGs


CASES = {
    "images decoded on demand": Case("128 px, of JPEGs of 500x375", ON_DEMAND_STEP, 128, (375, 500)),
    "images streamed": Case("64 px, of JPEGs of 64x64", STREAMED_STEP, 64, (64, 64)),
}


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = benchmark_parser("data", DESCRIPTION, "results/data")
    parser.add_argument("--rounds", type=positive, default=7, help="default: 7")
    parser.add_argument("--steps", type=positive, default=10, help="of each side, in each round (default: 10)")
    parser.add_argument("--batch", type=positive, default=32, help="default: 32")
    parser.add_argument("--images", type=positive, default=512, help="in the data of the first two (default: 512)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    arguments = parse_arguments(argv)
    prepare(arguments)
    run, progress = run_record("data", argv) | {"clock": "wall"}, Progress(0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CACHE_FOLDER] = f"{folder}/cache"
        figures = [measure(name, case, Path(folder), arguments, progress) for name, case in CASES.items()]
        figures.append(cached_images(Path(folder), arguments, progress))
    progress.close()
    write_figures("data", run, figures, arguments.output)
    return int(any(figure.verdict == "FAIL" for figure in figures))


def measure(name: str, case: Case, folder: Path, arguments: argparse.Namespace, progress: Progress) -> Figure:
    """A step with images that are decoded on demand over one with stored images."""
    progress.say(f"{name}: makes {arguments.images} images")
    file = write_images(folder / f"{case.pixels}.parquet", case.source, arguments.images)
    config = MobileViTv2Config(width_multiplier=0.5, image_size=case.pixels, num_labels=len(CLASSES))
    torch.manual_seed(0)
    model = MobileViTv2ForImageClassification(config)
    sides = [Side(copy.deepcopy(model), file, case.pixels, arguments, streaming) for streaming in (False, True)]
    stored, demanded = sides
    for turn in range(-1, arguments.rounds):  # the first warms up
        for side in sides if turn % 2 else sides[::-1]:
            side.take(arguments.steps, timed=turn >= 0)
        progress.say(f"{name}: round {turn + 1} of {arguments.rounds}")
    found = ratio(demanded.taken, stored.taken)
    waited = sum(demanded.waited) / sum(demanded.taken)
    claim = f"MobileViTv2-0.5, {case.claim}, batch {arguments.batch}, {WORKERS} workers"
    figure = Figure.of_ratio(f"a step with {name} over one with stored ones", claim, case.bound, found, at_most=True)
    return figure._replace(note=f"{figure.note}; {waited:.1%} of it waits for the batch")


class Side:
    """One model that trains on stored images, or on images decoded on demand."""

    def __init__(self, model: nn.Module, file: Path, pixels: int, arguments: argparse.Namespace, streaming: bool):
        self.model, self.streaming = model.train(), streaming
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
        options = {"image_size": pixels, "class_names": CLASSES, "streaming": streaming}
        images = load_images(file, **options).train
        augmentation = Augmentation(flip=True, crop=4)
        data = ImageBatches(images, mean=0.5, std=0.5, image_size=pixels, augmentation=augmentation)
        count = (arguments.rounds + 1) * (arguments.steps + WORKERS * AHEAD)
        workers = {"num_workers": WORKERS, "prefetch_factor": AHEAD} if streaming else {}
        order = list(islice(batches_of(data, arguments.batch), count))
        self.batches = iter(DataLoader(data, batch_sampler=order, collate_fn=take_batch, **workers))
        self.taken, self.waited = [], []

    def take(self, steps: int, timed: bool) -> None:
        """Trains so many steps, after those that bring the loader to where it is in a long training."""
        for _ in range(WORKERS * AHEAD):
            self.step()
        start = time.perf_counter()
        waited = sum(self.step() for _ in range(steps))
        if timed:
            self.taken.append(time.perf_counter() - start)
            self.waited.append(waited)

    def step(self) -> float:
        """One step; the seconds that it waited for its batch."""
        start = time.perf_counter()
        batch = next(self.batches)
        waited = time.perf_counter() - start
        self.model(**batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return waited


def batches_of(data: ImageBatches, size: int) -> Iterator[list[int]]:
    """Batches in the order of a training, one epoch after the other without end."""
    generator, left = torch.Generator().manual_seed(0), []
    while True:
        blocks = data.blocks
        order = torch.randperm(len(data), generator=generator) if blocks is None else blocks.order(generator)
        left += order.tolist()
        while len(left) >= size:
            yield left[:size]
            left = left[size:]


def cached_images(folder: Path, arguments: argparse.Namespace, progress: Progress) -> Figure:
    progress.say("images a second")
    file = write_images(folder / "small.parquet", SMALL, 16 * arguments.images)
    images = load_images(file, class_names=CLASSES).train
    data = ImageBatches(images, mean=0.5, std=0.5, augmentation=Augmentation(flip=True, crop=4))
    batch, threads = min(128, len(data)), os.cpu_count()
    torch.set_num_threads(threads)  # nothing else runs meanwhile
    speed = images_per_second(data, batch, arguments.rounds)
    claim = f"{SMALL[1]}x{SMALL[0]} pixels, flipped and cropped, batch {batch}, {threads} threads"
    return Figure("images a second of the cached path", claim, CACHED_IMAGES_PER_SECOND, speed)


def write_images(file: Path, size: tuple[int, int], count: int) -> Path:
    """JPEGs in parquet, in row groups of which a process may keep a few."""
    pictures = [jpeg(seed, size) for seed in range(min(PICTURES, count))]
    cells = [pictures[i % len(pictures)] for i in range(count)]
    table = pa.table({"image": cells, "label": [i % len(CLASSES) for i in range(count)]})
    pq.write_table(table, file, row_group_size=GROUP, compression="none", use_dictionary=False)
    image_rows.HELD_BYTES = 4 * GROUP * max(map(len, pictures))
    return file


def jpeg(seed: int, size: tuple[int, int]) -> bytes:
    """Blurred colours under noise: about half a byte a pixel, as photographs have."""
    generator, (height, width) = np.random.default_rng(seed), size
    colours = generator.integers(0, 256, (height // 16 + 2, width // 16 + 2, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC))
    pixels = (pixels + generator.normal(0, 12, (height, width, 1))).clip(0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=85)
    return stream.getvalue()


if __name__ == "__main__":
    raise SystemExit(main())
