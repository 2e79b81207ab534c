"""What a run prints: a header, a line per evaluation or epoch, and on a terminal a progress bar below them.

    print(header(trainer, "digits"))
    trainer.add_callback(ProgressLines())       # any Trainer's, with disable_tqdm=True and without PrinterCallback

Every log still goes to history.csv; `verbose` prints them all.
"""

import sys
import time

import torch
from tqdm.auto import tqdm
from transformers import ProgressCallback, Trainer, TrainerCallback
from transformers.trainer_utils import IntervalStrategy, has_length

from .history import measured

LONGEST_SILENCE = 300  # seconds, after which a step is printed though nothing was evaluated
HAVE_CLASSES = ("Classification", "Detection", "Segmentation")


def header(trainer: Trainer, data_name: str = "") -> str:
    """What is trained on what, where, and where the results go."""
    model, args = trainer.model, trainer.args
    name = model.config.model_type if hasattr(model, "config") else type(model).__name__
    count = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    data = [f"{data_name}: " * bool(data_name) + f"{_size(trainer.train_dataset)} samples for training"]
    if trainer.eval_dataset is not None:
        data.append(f"{_size(trainer.eval_dataset)} for evaluation")
    if any(word in type(model).__name__ for word in HAVE_CLASSES):
        data.append(f"{model.config.num_labels} classes")
    device, threads = str(args.device), torch.get_num_threads()
    if args.device.type == "cpu":
        device += f", {threads} thread{'s' * (threads > 1)}"
    rows = {
        "data": ", ".join(data),
        "model": f"{name}, {count:,} parameters" + (f", {trained:,} of them trained" if trained < count else ""),
        "weights": getattr(model, "weights_from", ""),
        "device": device + (f", {args.world_size} processes" if args.world_size > 1 else ""),
        "results": args.output_dir,
    }
    return "\n".join(f"{name:<8} {value}" for name, value in rows.items() if value)


def _size(dataset) -> str:
    return f"{len(dataset):,}" if has_length(dataset) else "a stream of"


class ProgressLines(TrainerCallback):
    """A line per evaluation, or per epoch where nothing is evaluated: step, losses, the metric, how long it takes.

        epoch 2/20  step 42/420  loss 2.103  eval_loss 2.118  accuracy 0.2292 (best)  5 s, 45 s left

    `loss` is the mean over the steps since the line before. The metric is the one that chooses the best model; where
    none does, all metrics are shown.

    Args:
        verbose: a line for each log too, with loss, learning rate and norm of the gradient.
    """

    def __init__(self, verbose: bool = False):
        self.verbose, self.training = verbose, False

    def on_train_begin(self, args, state, control, **kwargs):
        self.training = state.is_world_process_zero
        self.began = self.spoke = time.monotonic()
        self.first_step = self.last_log = state.global_step
        self.losses = self.steps = 0
        if self.training and state.global_step:
            self.write(f"goes on from step {state.global_step}/{state.max_steps}")

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not self.training:
            return
        if "loss" in logs:
            steps = state.global_step - self.last_log
            self.losses, self.steps = self.losses + steps * logs["loss"], self.steps + steps
            self.last_log = state.global_step
        if self.verbose:
            self.write(describe_log(logs, state))
        elif "loss" in logs and not control.should_evaluate and time.monotonic() - self.spoke > LONGEST_SILENCE:
            self.write(self.line(args, state))

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        if self.training:
            self.write(self.line(args, state, metrics))

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.training and args.eval_strategy == IntervalStrategy.NO:
            self.write(self.line(args, state))

    def on_train_end(self, args, state, control, **kwargs):
        self.training = False  # later evaluations are for others to report

    def write(self, line: str) -> None:
        """Above the bar, if there is one."""
        if line:
            tqdm.write(line)
            sys.stdout.flush()
            self.spoke = time.monotonic()

    def line(self, args, state, metrics: dict | None = None) -> str:
        epoch = f"{state.epoch or 0:.2f}".rstrip("0").rstrip(".")
        parts = [f"epoch {epoch}/{state.num_train_epochs}", f"step {state.global_step}/{state.max_steps}"]
        if self.steps:
            parts.append(f"loss {self.losses / self.steps:.4g}")
            self.losses = self.steps = 0
        return "  ".join([*parts, *self.scores(args, state, metrics or {}), self.times(state)])

    def scores(self, args, state, metrics: dict) -> list[str]:
        found = {name: value for name, value in measured(metrics).items() if name not in ("epoch", "step")}
        chooses = f"eval_{(args.metric_for_best_model or '').removeprefix('eval_')}"
        if chooses not in found:
            return [_shown(name, value) for name, value in found.items()]
        value, best = found[chooses], state.best_metric
        is_best = best is None or (value > best if args.greater_is_better else value < best)
        losses = [_shown("eval_loss", found["eval_loss"])] if chooses != "eval_loss" and "eval_loss" in found else []
        return [*losses, _shown(chooses, value) + " (best)" * is_best]

    def times(self, state) -> str:
        spent, steps = time.monotonic() - self.began, state.global_step - self.first_step
        left = spent / max(1, steps) * (state.max_steps - state.global_step)
        return f"{duration(spent)}, {duration(left)} left" if left else duration(spent)


def _shown(name: str, value) -> str:
    name = name if name.endswith("loss") else name.removeprefix("eval_")
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"


def duration(seconds: float) -> str:
    """ "8 s", "2 min 5 s", "3 h 20 min" """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def describe_log(logs: dict, state) -> str:
    """One log as a line: "step 50/780  epoch 0.64  loss 2.01  learning_rate 0.001"."""
    values = measured(logs) or {name: value for name, value in logs.items() if name.startswith("energy_")}
    shown = [_shown(name, value) for name, value in values.items() if name not in ("step", "epoch")]
    head = [f"step {state.global_step}/{state.max_steps}", f"epoch {state.epoch or 0:.2f}"]
    return "  ".join(head + shown) if shown else ""


def quote(text: str, most_lines: int = 5) -> str:
    """The first lines of a text that are not empty, marked as somebody else's words."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"  | {line}" for line in lines[:most_lines])


class ProgressBar(ProgressCallback):
    """transformers' progress bar without its dicts; `ProgressLines` prints above it."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        pass

    def close(self) -> None:
        for bar in (self.prediction_bar, self.training_bar):
            if bar is not None:
                bar.close()
