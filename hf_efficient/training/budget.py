"""A budget instead of epochs: `budget: 8min` or `budget: 20kJ`.

Before its first step a run rehearses: some steps on a copy of the model, which leave no trace in the run itself, tell
what a step takes. That fixes the number of steps, once: it is written to `budget.json`, beside the checkpoints and
into each of them, and never measured again, so that a resumed run ends as if it had not been interrupted. Where a
schedule makes steps cheaper or dearer as the run goes on (`patch_schedule`, `length_schedule`), each of its parts is
rehearsed.

Evaluations and checkpoints are not counted: they are the same whatever is trained.
"""

import copy
import json
import math
import random
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers.trainer_callback import TrainerState

from ..energy import EnergyMeter
from .checkpoints import replace_file
from .errors import RunError
from .patch_schedule import PatchSelectionCallback

FILE = "budget.json"
UNITS = {"s": ("seconds", 1), "min": ("seconds", 60), "h": ("seconds", 3600)}
UNITS |= {"J": ("joules", 1), "kJ": ("joules", 1e3), "Wh": ("joules", 3600), "kWh": ("joules", 3.6e6)}
ROUNDS, ROUND_SECONDS, MOST_STEPS = 3, 1.5, 20  # of a rehearsal
FINE = 1_000_000  # steps of an imagined run


@dataclass(frozen=True)
class Budget:
    """So many seconds, or joules, for all steps of a run."""

    amount: float
    kind: str  # "seconds" or "joules"

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Of "90s", "8min", "1.5h", "500J", "20kJ", "3Wh" or "0.1kWh"."""
        found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([A-Za-z]+)\s*", str(text))
        if not found or found[2] not in UNITS or not float(found[1]):
            raise ValueError(f"budget={text!r} must be a number above 0 with one of {', '.join(UNITS)}, such as 8min.")
        kind, factor = UNITS[found[2]]
        return cls(float(found[1]) * factor, kind)


@dataclass(frozen=True)
class Plan:
    """What a budget comes to.

    Args:
        budget: as it was asked for.
        steps: of the optimizer.
        seconds, joules: that they take, at the speed measured; joules only where the budget is one of energy.
        threads: that it was measured with.
        method: how joules were known.
    """

    budget: str
    steps: int
    seconds: float
    joules: float | None = None
    threads: int = 1
    method: str = ""

    def save(self, folder: Path) -> None:
        replace_file(folder / FILE, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Plan | None":
        try:
            return cls(**json.loads((folder / FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise RunError(
                f"{folder / FILE} can't be read ({error}): remove it, and the budget is planned anew."
            ) from error


def plan_run(trainer, checkpoint: Path | None) -> Plan:
    """The plan of a trainer whose arguments have a budget: that of its checkpoint or folder, or a new one."""
    text, folder = trainer.args.budget, Path(trainer.args.output_dir)
    found = [None]
    if trainer.is_world_process_zero():
        found = [(Plan.load(checkpoint) if checkpoint else None) or Plan.load(folder)]
    if trainer.args.world_size > 1:
        torch.distributed.broadcast_object_list(found, device=trainer.args.device)
    if found[0] is None or (found[0].budget != text and checkpoint is None):
        with Rehearsal(trainer) as rehearsal:
            found = [rehearsal.plan(text)]
        if trainer.args.world_size > 1:
            torch.distributed.broadcast_object_list(found, device=trainer.args.device)
    if trainer.is_world_process_zero():
        folder.mkdir(parents=True, exist_ok=True)
        found[0].save(folder)
    return found[0]


@dataclass
class Part:
    """A part of a run in which all steps cost the same."""

    begin: float  # as a share of the run
    share: float
    seconds: list[float]  # per step, of each round


class Rehearsal:
    """Steps of a run on a copy of its model: what they take, and nothing else.

        with Rehearsal(trainer) as rehearsal:
            rehearsal.play()
            rehearsal.seconds_per_step()

    Args:
        trainer: an EfficientTrainer that has not begun.
    """

    def __init__(self, trainer):
        self.trainer, self.running = trainer, None
        points = trainer.schedule_points()
        ends = [*points[1:], 1.0]
        self.parts = [Part(begin, end - begin, []) for begin, end in zip(points, ends, strict=True)]

    def __enter__(self) -> "Rehearsal":
        trainer = self.trainer
        with self.unnoticed():
            self.model = copy.deepcopy(trainer.model)
            if hasattr(self.model, "set_epoch"):
                self.model.set_epoch(0)
            kept, trainer.optimizer = trainer.optimizer, None
            optimizer, trainer.optimizer = trainer.create_optimizer(self.model), kept
            self.prepared, self.optimizer = trainer.accelerator.prepare(self.model, optimizer)
            for group in self.optimizer.param_groups:
                group["lr"] = 0.0  # without warm-up it might diverge
            self.batches = self.endless()
            for part in self.parts:
                self.steps(part, trainer.warm_steps)
        return self

    def __exit__(self, *_) -> None:
        self.trainer.accelerator.free_memory()
        self.model = self.prepared = self.optimizer = self.batches = None

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """The trainer, and all random numbers, are as they were when it is left."""
        trainer, python, numpy = self.trainer, random.getstate(), np.random.get_state()
        state, kept = trainer.state, trainer.running_state()
        with torch.random.fork_rng():
            try:
                trainer.state = TrainerState(max_steps=FINE)
                if self.running is not None:
                    trainer.restore_running_state(self.running)
                yield
            finally:
                self.running = trainer.running_state()
                trainer.state = state
                trainer.restore_running_state(kept)
                random.setstate(python)
                np.random.set_state(numpy)

    def endless(self) -> Iterator:
        loader = self.trainer.get_train_dataloader()
        while True:
            yield from loader

    def play(self, rounds: int = 1, seconds: float | None = None) -> None:
        """Times some steps of each part, for about so many seconds."""
        with self.unnoticed():
            for _ in range(rounds):
                for part in self.parts:
                    began = time.perf_counter()
                    self.steps(part, 1)
                    count = math.ceil((seconds or ROUND_SECONDS) / (time.perf_counter() - began))
                    count = self.agreed(min(max(count, 2), MOST_STEPS))
                    began = time.perf_counter()
                    self.steps(part, count)
                    part.seconds.append((time.perf_counter() - began) / count)

    def agreed(self, count: int) -> int:
        """That of the first process: all wait for one another in every step, so all must take as many."""
        found = [count]
        if self.trainer.args.world_size > 1:
            torch.distributed.broadcast_object_list(found, device=self.trainer.args.device)
        return found[0]

    def steps(self, part: Part, count: int) -> None:
        """As `Trainer` takes them."""
        trainer, args = self.trainer, self.trainer.args
        trainer.state.global_step = int(part.begin * FINE)
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, PatchSelectionCallback):
                callback.on_step_begin(args, trainer.state, trainer.control, model=self.model)
        accumulated = trainer.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        for _ in range(count):
            samples, items = trainer.get_batch_samples(self.batches, accumulated, args.device)
            for batch in samples:
                trainer.training_step(self.prepared, batch, items)
            if args.max_grad_norm:
                trainer.accelerator.clip_grad_norm_(self.prepared.parameters(), args.max_grad_norm)
            self.optimizer.step()
            self.prepared.zero_grad()

    def seconds_per_step(self) -> float:
        """Over the whole run: medians of the rounds."""
        return sum(part.share * statistics.median(part.seconds) for part in self.parts)

    def plan(self, text: str) -> Plan:
        """Plays, and divides the budget by what a step takes."""
        budget, threads = Budget.parse(text), torch.get_num_threads()
        if budget.kind == "seconds":
            self.play(ROUNDS)
            each = self.seconds_per_step()
            steps = max(1, int(budget.amount / each))
            return Plan(text, steps, round(steps * each, 3), threads=threads)
        with EnergyMeter(getattr(self.trainer, "energy_options", None)) as meter:
            began = time.perf_counter()
            with meter.phase("train"):
                self.play(2 * ROUNDS)  # readings are coarse
            watts = (meter.report().joules("train") or 0.0) / (time.perf_counter() - began)
        if not watts:
            raise RunError(f"budget={text!r} is one of energy, but energy can't be measured here: give one of time.")
        each = self.seconds_per_step()
        steps = max(1, int(budget.amount / (watts * each)))
        method = "; ".join(map(str, meter.report().components))
        return Plan(text, steps, round(steps * each, 3), round(steps * each * watts, 1), threads, method)
