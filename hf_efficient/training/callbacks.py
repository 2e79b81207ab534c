"""Callbacks for any Trainer: epochs told, weights averaged, checkpoints sealed; and ours that stops at SIGTERM and
SIGINT."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import TrainerCallback
from transformers.utils import logging

from . import checkpoints
from .ema import MovingAverage


class EpochCallback(TrainerCallback):
    """Tells the model and the training data which epoch it is, where they want to know (`set_epoch`)."""

    def on_epoch_begin(self, args, state, control, model=None, train_dataloader=None, **kwargs):
        epoch = int((state.epoch or 0) + 1e-6)
        for part in (model, getattr(train_dataloader, "dataset", None)):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)


class SealCallback(TrainerCallback):
    """Gives every checkpoint a manifest when it is complete, by which `newest_intact` knows it."""

    def on_save(self, args, state, control, **kwargs):
        if args.world_size > 1:
            torch.distributed.barrier()  # every process writes its own random state
        if state.is_world_process_zero:
            checkpoints.seal(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class AverageCallback(TrainerCallback):
    """Keeps the moving average of the weights up to date."""

    def __init__(self, average: MovingAverage):
        self.average = average

    def on_step_end(self, args, state, control, **kwargs):
        self.average.update()


class StopSignal(TrainerCallback):
    """SIGTERM and SIGINT (Ctrl-C) are answered at the end of the step: a checkpoint is saved, then the run ends as it
    would have without. A second SIGINT ends it at once."""

    def __init__(self):
        self.received = 0  # which

    @contextmanager
    def heeded(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # where Python takes no signals
            yield
            return
        self.received = 0
        before = {number: signal.signal(number, self.receive) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def receive(self, number, frame) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def on_step_end(self, args, state, control, **kwargs):
        if args.world_size > 1:  # processes hear of it one by one, but must save together
            heard = torch.tensor(float(self.received), device=args.device)
            torch.distributed.all_reduce(heard, torch.distributed.ReduceOp.MAX)
            self.received = int(heard)
        if self.received:
            if state.is_world_process_zero:
                name = signal.Signals(self.received).name
                print(f"{name}: saving a checkpoint; the same command goes on from it.", file=sys.stderr, flush=True)
            control.should_save = True

    def end_if_received(self) -> None:
        """When the checkpoint is there."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received:
            sys.exit(128 + self.received)  # what a shell calls it


@contextmanager
def without_bars() -> Iterator[None]:
    """Without the bars that transformers draws whenever it saves a model."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
