"""EnergyCallback: measures a Trainer's run by phase and epoch, and stops it when its energy is spent.

    EnergyCallback({"country": "DEU", "budget_kwh": 0.5}).attach(trainer)
    trainer.train()
    print(energy_report(trainer).to_markdown())

Sums live in three places. `energy.json` in the output folder is written at each reading; every checkpoint holds what
had been spent when it was saved (trainer_state.json); and a run that is taken up again goes on from the file, since
what was spent after the checkpoint was spent, though its work was lost. How much that was is in the report.

With several ranks, each counts what no rank before it measures (`counted_by`): a machine counts once, however many
ranks it has, and machines are summed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers.utils import logging

from ..energy.measurement import EnergyMeter
from ..energy.options import EnergyOptions
from ..energy.report import FILE, EnergyReport, counted_by

logger = logging.get_logger(__name__)
STEPS_PER_BUDGET_CHECK = 10  # where ranks have to agree


class EnergyCallback(TrainerCallback, ExportableState):
    """
    Args:
        options: EnergyOptions, or the `energy` section of a YAML.
        unit: what is counted, "image" or "token".
        items_per_sample: how many of them a sample of the data set holds.
        meter_options: further arguments of EnergyMeter.

    Attributes:
        meter: the EnergyMeter, from the beginning of training on.
    """

    def __init__(
        self,
        options: EnergyOptions | dict | None = None,
        unit: str = "image",
        items_per_sample: float = 1,
        **meter_options,
    ):
        self.options = EnergyOptions.of(options)
        self.unit, self.items_per_sample, self.meter_options = unit, items_per_sample, meter_options
        self.meter: EnergyMeter | None = None
        self.log: Callable[[dict], None] | None = None
        self._epoch, self._progress, self._training = 1, 0.0, False

    def attach(self, trainer) -> "EnergyCallback":
        """Joins a trainer, through whose `log` the rows go."""
        trainer.add_callback(self)
        self.log = trainer.log
        return self

    def state(self) -> dict:
        """What goes into a checkpoint."""
        args = {"options": self.options.to_dict(), "unit": self.unit, "items_per_sample": self.items_per_sample}
        if self.meter is not None:
            self.meter.sample()
        return {"args": args, "attributes": {"saved": self.meter and self.meter.report().to_dict()}}

    # Beginning and end

    def on_train_begin(self, args, state, control, **kwargs):
        if not self.options.enabled:
            return
        rank, ranks = args.process_index, args.world_size
        folder = Path(args.output_dir)
        past, lost = find_past(folder, state) if rank == 0 else (None, 0.0)
        self.meter = EnergyMeter(
            self.options,
            unit=self.unit,
            rank=rank,
            path=folder / (FILE if rank == 0 else f"energy-rank{rank}.json"),
            accelerator=args.device.type,
            alone=ranks == 1,
            **self.meter_options,
        ).start()
        heard = _gather((self.meter.things, past), ranks)
        self.meter.counts = counted_by([things for things, _ in heard], rank)
        if past := heard[0][1]:
            self.meter.resume(past if rank == 0 else _freshest(self.meter.path, past, rank), lost, ranks)
        self._say_what_is_resumed(state, past, lost)
        if self.options.idle_seconds and not self.meter.has_baseline:
            self.meter.measure_idle(self.options.idle_seconds)
        # A checkpoint of a run that had no EnergyCallback has no place for it, which Trainer takes for granted.
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self._training, self._progress = True, state.epoch or 0.0
        self._enter_epoch(state)
        self._exchange(args)

    def _say_what_is_resumed(self, state, past: EnergyReport | None, lost: float) -> None:
        if past is not None and state.is_world_process_zero:
            logger.info(f"energy spent before: {past.joules() or 0:.4g} J, {lost:.4g} J of it for work that was lost.")

    def on_train_end(self, args, state, control, **kwargs):
        if self.meter is None:
            return
        self._training = False
        self.meter.leave()
        self.meter.note(finished=True)
        self._exchange(args)
        self.meter.stop()

    # Phases

    def _enter_epoch(self, state) -> None:
        self._epoch = int((state.epoch or 0.0) + 1e-6) + 1
        self.meter.enter("train", self._epoch)

    def on_epoch_begin(self, args, state, control, **kwargs):
        if self.meter is not None:
            self._enter_epoch(state)

    def on_step_end(self, args, state, control, train_dataloader=None, **kwargs):
        if self.meter is None:
            return
        if self.meter.rank == 0:
            self.meter.add_items(self._items_since(args, state, train_dataloader))
        if self.meter.options.budget is not None:
            self._check_budget(args, state, control)
        if control.should_save:
            self._exchange(args)
        if control.should_evaluate:  # the evaluation comes next
            self.meter.enter("eval", self._epoch)

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.meter is None:
            return
        self._log("train", args, state, control)
        if control.should_evaluate:
            self.meter.enter("eval", self._epoch)

    def on_prediction_step(self, args, state, control, **kwargs):
        """Where nothing announced an evaluation, its first batch does."""
        if self.meter is None or self.meter.current_phase in ("eval", "inference"):
            return
        self.meter.start()
        self.meter.enter("eval", self._epoch)

    def on_evaluate(self, args, state, control, eval_dataloader=None, **kwargs):
        if self.meter is None or self.meter.current_phase is None:
            return
        phase = self.meter.current_phase
        if self.meter.rank == 0:
            self.meter.add_items(self.items_per_sample * (_length(eval_dataloader) or 0))
        if phase != "eval":  # somebody else's, who will leave it
            return
        self._log(phase, args, state, control)
        if self._training:
            self.meter.enter("train", self._epoch)
        else:
            self.meter.stop()

    def on_predict(self, args, state, control, **kwargs):
        self.on_evaluate(args, state, control, **kwargs)

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Books what is done in the block after training to a phase; nothing happens if training never began."""
        if self.meter is None:
            yield
            return
        was_running = self.meter.running
        self.meter.start()
        with self.meter.phase(phase, self._epoch if phase == "eval" else 0):
            yield
        if not was_running:
            self.meter.stop()

    # Counting, logging, stopping

    def _items_since(self, args, state, dataloader) -> float:
        """Images or tokens of all ranks since the last step, such that those of an epoch add up."""
        before, self._progress = self._progress, state.epoch
        samples = _length(dataloader)
        if samples is None:
            samples_now = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            return samples_now * self.items_per_sample
        # Fewer where those that don't fill a batch are left out.
        samples = min(samples, len(dataloader) * args.train_batch_size * args.world_size)
        return (state.epoch - before) * samples * self.items_per_sample

    def _exchange(self, args) -> None:
        """Hears of the other ranks. All ranks come here at the same moments."""
        if args.world_size > 1:
            self.meter.sample()
            heard = _gather(self.meter.own_report(), args.world_size)
            self.meter.others = [report for rank, report in enumerate(heard) if rank != self.meter.rank]
            self.meter.others += self.meter.absent

    def _log(self, phase: str, args, state, control) -> None:
        self.meter.sample()
        self._exchange(args)
        report = self.meter.report()
        row = {f"energy_{phase}_seconds": report.seconds(phase, self._epoch)}
        if report.components:
            row[f"energy_{phase}_joules"] = report.joules(phase, self._epoch)
            row[f"energy_{phase}_joules_per_{self.unit}"] = report.joules_per_item(phase, self._epoch)
            row["energy_total_kwh"] = report.kwh()
        row = {name: value for name, value in row.items() if value is not None}
        if self.log is None:
            state.log_history.append({**row, "epoch": state.epoch, "step": state.global_step})
            return
        due = control.should_log
        self.log(row)
        control.should_log = due  # logging a row must not take the place of logging the loss

    def _check_budget(self, args, state, control) -> None:
        spent = self.meter.joules + sum(report.joules() or 0.0 for report in self.meter.absent)
        if args.world_size > 1:
            if state.global_step % STEPS_PER_BUDGET_CHECK:
                return
            total = torch.tensor(spent, dtype=torch.float32, device=args.device)
            distributed.all_reduce(total)
            spent = total.item()
        if spent >= self.options.budget:
            logger.warning(
                f"the energy budget of {self.options.budget:.4g} J is spent at step {state.global_step} "
                f"({spent:.4g} J): training saves a checkpoint and stops."
            )
            self.meter.note(stopped_by_budget=True)
            control.should_training_stop = control.should_save = True


def energy_report(trainer) -> EnergyReport | None:
    """The energy report of a trainer's run; None if nothing was measured."""
    for callback in trainer.callback_handler.callbacks:  # asked for anew: Trainer may replace callbacks as it resumes
        if isinstance(callback, EnergyCallback) and callback.meter is not None:
            return callback.meter.report()
    return None


def find_past(folder: Path, state) -> tuple[EnergyReport | None, float]:
    """The report that a run goes on from, and the joules of it that went into lost work.

    A run that starts from its beginning goes on from the file too, if the one that wrote it did not come to its end:
    it was killed before its first checkpoint.
    """
    written = saved = None
    if (folder / FILE).is_file():
        try:
            written = EnergyReport.load(folder / FILE)
        except (OSError, ValueError) as error:
            logger.warning(f"the energy spent before can't be read: {error}")
    if state.global_step:
        saved = _saved_in(state)
        if written is None or (saved is not None and saved.run != written.run):
            return saved, 0.0
    elif written is None or written.finished:
        return None, 0.0
    kept = 0.0 if saved is None else saved.joules("train") or 0.0
    lost = 0.0 if written.finished or (state.global_step and saved is None) else written.joules("train") or 0.0
    return written, max(0.0, lost - kept)


def _saved_in(state) -> EnergyReport | None:
    """The report in the checkpoint that a state came from."""
    stored = state.stateful_callbacks.get(EnergyCallback.__name__)
    stored = stored[-1] if isinstance(stored, list) else stored
    record = ((stored or {}).get("attributes") or {}).get("saved")
    return EnergyReport.from_dict(record) if record else None


def _freshest(path: Path, past: EnergyReport, rank: int) -> EnergyReport:
    """What a rank other than 0 goes on from: its own file, or what rank 0 last heard of it."""
    try:
        own = EnergyReport.load(path)
    except (OSError, ValueError):
        return past
    heard = sum(row.joules for row in past.rows if row.rank == rank)
    return own if own.run == past.run and sum(row.joules for row in own.rows) >= heard else past


def _gather(thing, ranks: int) -> list:
    if ranks == 1:
        return [thing]
    things = [None] * ranks
    distributed.all_gather_object(things, thing)
    return things


def _length(dataloader) -> int | None:
    try:
        return len(dataloader.dataset)
    except (AttributeError, TypeError):
        return None
