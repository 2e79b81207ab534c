"""Benchmark what training costs beside the model: make bench-training ARGS="--help"."""

import argparse
import copy
import sys
import tempfile
from pathlib import Path

import torch
from transformers import TrainerCallback

from benchmarks.command_line import Progress, benchmark_parser, positive, prepare
from benchmarks.floors import ENERGY_STEP, IMAGES_PER_SECOND, SCRIPT_STEP, Figure
from benchmarks.record import ROOT, run_record
from benchmarks.reports import write_figures
from benchmarks.timing import ratio
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.experiments.timing import clock, seconds_of
from hf_efficient.training.energy_callback import EnergyCallback
from hf_efficient.training.run import load_run
from hf_efficient.training.tasks.image_classification import build_trainer
from hf_efficient.training.trainer import EfficientTrainer

DESCRIPTION = """

What training with our script (scripts/train_image_classifier.py) adds to a bare PyTorch loop:

  step     its step, with its data, logs and callbacks, over forward, backward and AdamW on one batch that is there
  energy   a step with the energy callback over one without
  images   how many images a second the input path makes, augmented and normalised

The script trains; every so many steps its clock is stopped, the bare loop takes as many on a copy of the model, and
the energy callback is switched on or off. So each round gives ratios of times that were taken side by side; shown are
their median and quartiles. Data and model are those of a config; data come from the folder that HF_EFFICIENT_DATA
names, or from the Hub.
"""
CONFIG = ROOT / "configs" / "cifar10_vit_small.yaml"
SIZE = {"hidden_size": "128", "num_hidden_layers": "6", "intermediate_size": "320"}  # about 1 M parameters
MODES = ("plain", "energy")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = benchmark_parser("training", DESCRIPTION, "results/training")
    parser.add_argument(
        "--config", type=Path, default=CONFIG, metavar="YAML", help=f"data and model (default: {CONFIG.stem})"
    )
    parser.add_argument("--rounds", type=positive, default=9, help="default: 9")
    parser.add_argument("--steps", type=positive, default=12, help="of each contender, in each round (default: 12)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    arguments = parse_arguments(argv)
    prepare(arguments)
    run, progress = run_record("training", argv), Progress(0)
    figures = measure(arguments.config, arguments.rounds, arguments.steps, progress)
    progress.close()
    write_figures("training", run, figures, arguments.output)
    return int(any(figure.verdict == "FAIL" for figure in figures))


def measure(config: Path, rounds: int, steps: int, progress: Progress) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        overrides = {"output_dir": folder, "eval_strategy": "no", "save_strategy": "no", "disable_tqdm": "true"}
        overrides |= {"max_steps": str((2 * rounds + 2) * steps), "logging_steps": "50", **SIZE}
        run = load_run([str(config), *(word for key, value in overrides.items() for word in (f"--{key}", value))])
        trainer = build_trainer(run)
        turns = Turns(trainer, EnergyCallback(), steps, progress)
        trainer.add_callback(turns)
        trainer.train()
        turns.energy.meter.stop()
    batch = run.training.per_device_train_batch_size
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    what = f"{trainer.model.config.model_type}, {parameters / 1e6:.1f} M parameters, batch {batch}"
    step = ratio(turns.taken["plain"], turns.taken["bare, plain"])
    energy = ratio(
        [with_it / bare for with_it, bare in zip(turns.taken["energy"], turns.taken["bare, energy"], strict=True)],
        [without / bare for without, bare in zip(turns.taken["plain"], turns.taken["bare, plain"], strict=True)],
    )
    progress.say("images")
    speed = images_per_second(trainer.train_dataset, batch, rounds)
    pixels = "x".join(map(str, trainer.train_dataset.images.pixels.shape[2:]))
    return [
        Figure.of_ratio("the script's step over a bare loop's", what, SCRIPT_STEP, step, at_most=True),
        Figure.of_ratio("a step with the energy callback over one without", what, ENERGY_STEP, energy, at_most=True),
        Figure("images a second", f"{pixels} pixels, augmented, batch {batch}", IMAGES_PER_SECOND, speed),
    ]


class Turns(TrainerCallback):
    """Has the script and a bare loop take turns, and times both."""

    def __init__(self, trainer: EfficientTrainer, energy: EnergyCallback, steps: int, progress: Progress):
        self.energy, self.steps, self.progress = energy, steps, progress
        self.bare = BareLoop(copy.deepcopy(trainer.model), trainer)
        self.taken = {name: [] for mode in MODES for name in (mode, f"bare, {mode}")}
        self.turn, self.mode, self.since = -2, MODES[0], 0.0  # two turns to warm up

    def on_train_begin(self, args, state, control, **kwargs):
        self.energy.log = lambda row: None
        self.energy.on_train_begin(args, state, control, **kwargs)
        self.switch(self.mode, state)

    def on_epoch_begin(self, args, state, control, **kwargs):
        if self.mode == "energy":
            self.energy.on_epoch_begin(args, state, control, **kwargs)

    def on_step_end(self, args, state, control, **kwargs):
        if self.mode == "energy":
            self.energy.on_step_end(args, state, control, **kwargs)
        if state.global_step % self.steps:
            return
        script = clock() - self.since
        bare = seconds_of(lambda: [self.bare.step() for _ in range(self.steps)])
        if self.turn >= 0:
            self.taken[self.mode].append(script)
            self.taken[f"bare, {self.mode}"].append(bare)
        self.turn += 1
        self.progress.say(f"turn {self.turn} of {state.max_steps // self.steps - 2}")
        self.switch(MODES[(self.turn + 1) // 2 % 2], state)  # plain energy energy plain plain ...: drift cancels

    def switch(self, mode: str, state) -> None:
        """Events reach the energy callback, and its meter reads, only where it is to be measured."""
        self.mode = mode
        self.energy.meter.stop()
        if mode == "energy":
            self.energy.meter.start()
            self.energy.on_epoch_begin(None, state, None)
        self.since = clock()


class BareLoop:
    """What a step costs at the least: one batch, forward, backward, optimizer."""

    def __init__(self, model: torch.nn.Module, trainer: EfficientTrainer):
        self.model = model.train()
        self.batch = trainer.train_dataset.__getitems__(range(trainer.args.train_batch_size))
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def step(self) -> None:
        self.model(**self.batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def images_per_second(batches: ImageBatches, batch: int, rounds: int) -> float:
    """The median over the rounds; random indices, as in training."""
    speeds, count = [], min(len(batches), 50 * batch) // batch * batch
    for epoch in range(-1, rounds):  # the first warms up
        batches.set_epoch(epoch + 1)
        order = torch.randperm(len(batches))[:count].view(-1, batch).tolist()
        seconds = seconds_of(lambda order=order: [batches.__getitems__(indices) for indices in order])
        speeds += [count / seconds] if epoch >= 0 else []
    return float(torch.tensor(speeds).median())


if __name__ == "__main__":
    raise SystemExit(main())
