"""What the training loop knows beyond transformers' own state: the order of the data, and its sums."""

import json
import time
from pathlib import Path

import torch
from torch.utils.data import Sampler
from transformers import EarlyStoppingCallback, TrainerCallback

from ..data.image_rows import Blocks


class EpochSampler(Sampler[int]):
    """All indices in an order that is a function of seed and epoch; those that don't fill a batch are left out.

    Args:
        blocks: of samples that must be read together, if they must.
    """

    def __init__(self, length: int, seed: int, batch: int = 1, blocks: Blocks | None = None):
        self.length, self.seed, self.epoch, self.blocks = length, seed, 0, blocks
        self.drawn = length // batch * batch or length

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(hash((self.seed, self.epoch)) % 2**63)  # of ints, so no salt
        if self.blocks is None:
            order = torch.randperm(self.length, generator=generator)
        else:
            order = self.blocks.order(generator)
        yield from order[: self.drawn].tolist()

    def __len__(self) -> int:
        return self.drawn


class Loop(TrainerCallback):
    """The state of the training loop that Trainer's own state does not have."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.sampler: EpochSampler | None = None
        self.parameters: int | None = None
        self.steps_per_epoch = 0
        self.finished = False  # before it began: what was resumed was over
        self.epoch_is_over = self.save_at_epoch_end = False
        self.loaded: dict | None = None
        self.seconds_trained, self.since = 0.0, time.monotonic()  # those before a resume included

    def waits_for_epoch_end(self) -> bool:
        """Whether a checkpoint now would have to leave out what is still to come at the end of the epoch."""
        state, control = self.trainer.state, self.trainer.control
        ends = control.should_training_stop or state.global_step % self.steps_per_epoch == 0
        self.save_at_epoch_end = ends and not self.epoch_is_over
        return self.save_at_epoch_end

    def on_train_begin(self, args, state, control, **kwargs):
        self.since = time.monotonic()
        if self.loaded is not None:
            trainer = self.trainer
            trainer._tr_loss = torch.tensor(self.loaded["loss_since_log"], device=args.device)
            trainer._total_loss_scalar = self.loaded["loss_until_log"]
            trainer._globalstep_last_logged = self.loaded["last_logged"]
            self.seconds_trained, self.loaded = self.loaded["seconds"], None

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.epoch_is_over = self.save_at_epoch_end = False

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.trainer.check_step()

    def on_epoch_end(self, args, state, control, **kwargs):
        self.epoch_is_over = True
        if self.save_at_epoch_end:
            control.should_save = True

    def on_train_end(self, args, state, control, **kwargs):
        self.count_seconds()

    def count_seconds(self) -> None:
        now = time.monotonic()
        self.seconds_trained, self.since = self.seconds_trained + now - self.since, now

    def file(self, folder: Path) -> Path:
        return folder / f"loop_{self.trainer.args.process_index}.json"

    def save(self, folder: Path) -> None:
        self.count_seconds()
        trainer = self.trainer
        state = {
            "loss_since_log": trainer._tr_loss.item(),
            "loss_until_log": trainer._total_loss_scalar,
            "last_logged": trainer._globalstep_last_logged,
            "seconds": self.seconds_trained,
        }
        self.file(folder).write_text(json.dumps(state), encoding="utf-8")

    def load(self, folder: Path) -> None:
        if self.file(folder).is_file():  # with more processes than before, the new ones have none
            self.loaded = json.loads(self.file(folder).read_text(encoding="utf-8"))


def has_run_out(callback: TrainerCallback) -> bool:
    """Whether early stopping has ended the run."""
    return (
        isinstance(callback, EarlyStoppingCallback)
        and callback.early_stopping_patience_counter >= callback.early_stopping_patience
    )
