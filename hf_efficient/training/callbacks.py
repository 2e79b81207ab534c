"""What happens along the way: lines or a progress bar, the moving average, and a stop that was asked for."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import ProgressCallback, TrainerCallback
from transformers.utils import logging

from .ema import MovingAverage
from .history import measured


def describe(logs: dict, state) -> str:
    """One log as a line: "step 50/780  epoch 0.64  loss 2.01  learning_rate 0.001"."""
    values = measured(logs) or {name: value for name, value in logs.items() if name.startswith("energy_")}
    shown = [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
        if name not in ("step", "epoch", "grad_norm")
    ]
    head = [f"step {state.global_step}/{state.max_steps}", f"epoch {state.epoch or 0:.2f}"]
    return "  ".join(head + shown) if shown else ""


class LineCallback(TrainerCallback):
    """A line per log, where there is no terminal that a bar could be drawn on."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and (line := describe(logs, state)):
            print(line, flush=True)


class BarCallback(ProgressCallback):
    """transformers' progress bar, with the same lines above it."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and self.training_bar is not None and (line := describe(logs, state)):
            self.training_bar.write(line)

    def close(self) -> None:
        for bar in (self.prediction_bar, self.training_bar):
            if bar is not None:
                bar.close()


class AverageCallback(TrainerCallback):
    """Keeps the moving average of the weights up to date."""

    def __init__(self, average: MovingAverage):
        self.average = average

    def on_step_end(self, args, state, control, **kwargs):
        self.average.update()


class StopSignal(TrainerCallback):
    """SIGTERM is answered at the end of the step: a checkpoint is saved, then the process exits with 143."""

    def __init__(self):
        self.received = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # where Python takes no signals
            yield
            return
        before = signal.signal(signal.SIGTERM, self.receive)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def receive(self, number, frame) -> None:
        self.received = True

    def on_step_end(self, args, state, control, **kwargs):
        if args.world_size > 1:  # processes hear of it one by one, but must save together
            heard = torch.tensor(float(self.received), device=args.device)
            torch.distributed.all_reduce(heard, torch.distributed.ReduceOp.MAX)
            self.received = bool(heard)
        if self.received:
            if state.is_world_process_zero:
                print("SIGTERM: saving a checkpoint; the same command goes on from it.", file=sys.stderr, flush=True)
            control.should_save = True


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
