"""transformers' Trainer with exact resume: a run that is killed and started again ends as if nothing had happened.

A checkpoint holds all that the next step depends on. Weights, optimizer, scheduler, random states and Trainer's own
state are transformers' files; beside them are the moving average and the loss since the last log. Data come in an
order that is a function of seed and epoch. Models and datasets that know epochs (`set_epoch`) are told.

Where transformers' loop can't be resumed exactly, it is mended here:

- A checkpoint of the last step before evaluation, logs and saving at the end of an epoch waits until those are done:
  a resumed run begins with the next epoch, and would skip them.
- A run that was over is not given one more step.
- Weights are loaded all or not at all; transformers goes on with those it finds.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from PIL.Image import Image
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset, Sampler
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, Trainer
from transformers.modeling_utils import PreTrainedModel
from transformers.optimization import get_scheduler
from transformers.trainer_callback import ExportableState, TrainerState
from transformers.trainer_utils import has_length

from ..data.length_sampler import LengthSampler
from ..errors import told
from . import checkpoints
from .arguments import STEP_FUNCTIONS
from .budget import Plan, plan_run
from .callbacks import AverageCallback, StopSignal, without_bars
from .curves import draw_curves
from .ema import MovingAverage
from .errors import CheckpointError, RunError
from .finite_mixin import FiniteMixin
from .folder_lock import FolderLock, own_folder
from .history import HistoryCallback, never_costs_the_run
from .hub_mixin import HubMixin
from .image_sizes import check_image_sizes, interpolates, resize_images
from .loop import EpochSampler, Loop, has_run_out
from .optimizers import MUON, muon_with_adamw
from .patch_schedule import PatchSelectionCallback, check_patch_selection
from .processes import shard, warn_of_launch
from .progress import ProgressBar, ProgressLines
from .step_functions import value_at
from .trainer_methods import check_trainer_methods

OPTIMIZER_ERRORS = (ValueError, TypeError, ImportError)  # of options that it does not have, or one not installed


class EfficientTrainer(FiniteMixin, HubMixin, Trainer):
    """A Trainer with exact resume, for `EfficientTrainingArguments`; everything else is as in transformers.

    Subclasses save what else their next step depends on in `save_extra`, and get it back in `load_extra`.

    Args:
        test_dataset: what is looked at once, when training is over and nothing is left to choose.
    """

    def __init__(self, *args, test_dataset: Dataset | None = None, **kwargs):
        check_trainer_methods()
        with told("training", RunError, (OSError,)):  # output_dir
            super().__init__(*args, **kwargs)
        warn_of_launch(self.args.world_size, self.is_fsdp_enabled)
        self.test_dataset = test_dataset
        if self.args.ema_decay and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            raise RunError(f"ema_decay={self.args.ema_decay} can't be used with FSDP or DeepSpeed: set it to 0.")
        self.average: MovingAverage | None = None
        self.plan: Plan | None = None  # of the budget, if there is one
        self.energy_options: dict | None = None  # of what a budget of energy is measured with
        self.lock: FolderLock | None = None  # of output_dir, while this run owns it
        self.stop_signal = StopSignal()
        self.loop = Loop(self)
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        patience = self.args.early_stopping_patience
        if patience is not None:
            self.add_callback(EarlyStoppingCallback(patience, self.args.early_stopping_threshold))
        if self.args.patch_schedule or self.args.patch_probability:
            check_patch_selection(self.model)
            self.add_callback(PatchSelectionCallback(self.args.patch_schedule, self.args.patch_probability))
        if self.args.image_size_schedule:
            check_image_sizes(self.model, self.args.image_size_schedule.values())
        for callback in (HistoryCallback(), ProgressLines(self.args.verbose), self.stop_signal, self.loop):
            self.add_callback(callback)
        if not self.args.disable_tqdm:
            self.add_callback(ProgressBar())

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.is_fsdp_enabled = shard(self.accelerator, self.args.fsdp_plugin_args, self.model)

    # ---- what a subclass adds ----

    def save_extra(self, folder: str | Path) -> None:
        """Writes what else a checkpoint must hold; every process is called."""

    def load_extra(self, folder: str | Path) -> None:
        """Reads it again, when model, optimizer and scheduler are there."""

    def pictures(self) -> dict[str, Image]:
        """Of what the last evaluation found, by name; they are saved beside the results."""
        return {}

    warm_steps = 2  # until a step takes as long as all that follow

    def running_state(self):
        """What steps change in the trainer itself, ..."""

    def restore_running_state(self, state) -> None:
        """... for it to be as it was."""

    def schedule_points(self) -> list[float]:
        """The shares of the run at which steps become cheaper or dearer."""
        functions = (getattr(self.args, name) or {} for name in STEP_FUNCTIONS)
        return sorted({0.0, *(point for function in functions for point in function)})

    # ---- training ----

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        """Trains.

        Args:
            resume_from_checkpoint: True for the newest intact one in `output_dir`, or from the beginning if there is
                none; or the folder of one.
        """
        with self.owning_folder():
            return self._train(resume_from_checkpoint, **kwargs)

    @contextmanager
    def owning_folder(self) -> Iterator[None]:
        """With output_dir for this run alone; RunError on all processes if another has it."""
        if self.lock is not None:
            yield
            return
        with own_folder(self.args) as self.lock:
            try:
                yield
            finally:
                self.lock = None

    def _train(self, resume_from_checkpoint: str | bool | None, **kwargs):
        if self.args.should_save:
            checkpoints.remove_leftovers(self.args.output_dir)
        checkpoint = self.choose_checkpoint(resume_from_checkpoint)
        if self.args.budget:
            self.plan = plan_run(self, checkpoint)
            self.args.max_steps = self.plan.steps
        if self.args.ema_decay:
            self.remove_callback(AverageCallback)
            self.average = MovingAverage(self.model, self.args.ema_decay)
            self.callback_handler.callbacks.insert(0, AverageCallback(self.average))  # before others look
        try:
            with self.stop_signal.heeded():
                return super().train(resume_from_checkpoint=checkpoint and str(checkpoint), **kwargs)
        finally:
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, ProgressBar):
                    callback.close()
            if self.is_world_process_zero() and self.state.log_history:
                chosen = self.state.best_global_step if self.args.load_best_model_at_end else None
                curves = draw_curves(self.state.log_history, self.args.metric_for_best_model or "loss", chosen)
                file = Path(self.args.output_dir) / "curves.png"
                if curves is not None:
                    with never_costs_the_run(file):
                        curves.save(file)

    def choose_checkpoint(self, resume: str | bool | None) -> Path | None:
        """Where to begin, the same on all processes."""
        if not resume:
            return None
        if resume is not True:
            if harm := checkpoints.damage(Path(resume)):
                raise CheckpointError(f"can't resume from {resume}: {harm}.")
            return Path(resume)
        found = [None]
        if self.is_world_process_zero():
            newest = checkpoints.newest_intact(self.args.output_dir)
            for damaged in reversed(checkpoints.list_checkpoints(self.args.output_dir)):
                if damaged == newest:
                    break
                checkpoints.set_aside(damaged)
            found = [newest and str(newest)]
        if self.args.world_size > 1:
            torch.distributed.broadcast_object_list(found, device=self.args.device)
        return found[0] and Path(found[0])

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        if self.optimizer is None and self.args.optim == MUON:
            if self.is_fsdp_enabled or self.is_deepspeed_enabled:
                raise RunError(
                    "optim: muon needs whole matrices, not those of FSDP or DeepSpeed: set it to adamw_torch."
                )
            model, args = self.model if model is None else model, self.args
            decayed = set(self.get_decay_parameter_names(model))
            self.optimizer = muon_with_adamw(
                model,
                args.learning_rate,
                args.weight_decay,
                no_decay=tuple(name for name, _ in model.named_parameters() if name not in decayed),
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_epsilon,
            )
        with told("training.optim", RunError, OPTIMIZER_ERRORS):
            return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        if self.lr_scheduler is None and self.args.decay_share < 1:
            warm_up = self.args.get_warmup_steps(num_training_steps)
            decay = min(round(self.args.decay_share * num_training_steps), num_training_steps - warm_up)
            self.lr_scheduler = get_scheduler(
                "warmup_stable_decay",
                self.optimizer if optimizer is None else optimizer,
                warm_up,
                num_training_steps,
                {"num_decay_steps": decay, "decay_type": "linear"},
            )
            self._created_lr_scheduler = True
        with told(f"training.lr_scheduler_kwargs={self.args.lr_scheduler_kwargs}", RunError, (TypeError, ValueError)):
            return super().create_scheduler(num_training_steps, optimizer)

    def _init_training_state(self, max_steps, num_update_steps_per_epoch, *args):
        self.loop.steps_per_epoch = num_update_steps_per_epoch
        found = super()._init_training_state(max_steps, num_update_steps_per_epoch, *args)
        self.loop.finished = self.state.global_step > 0 and (
            self.state.global_step >= max_steps or any(has_run_out(c) for c in self.callback_handler.callbacks)
        )
        if self.state.best_global_step:  # the folder may have been moved since
            best = self.checkpoint_at(self.state.best_global_step)
            self.state.best_model_checkpoint = str(best) if best.is_dir() else None
        return found

    def _load_callback_state(self) -> None:
        """Callbacks go on with what they had counted; transformers would make new ones of them."""
        for callback in self.callback_handler.callbacks:
            state = self.state.stateful_callbacks.get(type(callback).__name__)
            if isinstance(callback, ExportableState) and isinstance(state, dict):
                for name, value in state.get("attributes", {}).items():
                    setattr(callback, name, value)

    def _prepare_for_training(self, max_steps, train_dataloader, resume_from_checkpoint):
        found = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        if resume_from_checkpoint is not None:
            self.loop.load(Path(resume_from_checkpoint))
            self.load_extra(resume_from_checkpoint)
        return found

    def _run_epoch(self, *, epoch, **kwargs):
        if self.loop.finished:
            self.control.should_training_stop = True
            return
        for part in (self.loop.sampler, self.train_dataset, self.model):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        super()._run_epoch(epoch=epoch, **kwargs)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if dataset is None or not has_length(dataset) or self.args.train_sampling_strategy != "random":
            return super()._get_train_sampler(train_dataset)
        batch = self._train_batch_size * max(1, self.args.world_size)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        lengths = getattr(dataset, "lengths", None)
        if lengths is not None:
            self.loop.sampler = LengthSampler(lengths, batch, seed, self.args.whole_batches)
        else:
            whole = batch if self.args.whole_batches else 1
            self.loop.sampler = EpochSampler(len(dataset), seed, whole, getattr(dataset, "blocks", None))
        return self.loop.sampler

    def _evaluate(self, trial, ignore_keys_for_eval, skip_scheduler=False):
        if skip_scheduler and self.state.global_step:  # eval_on_start: this is no start
            return {}
        return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)

    def _finalize_training(self, *args):
        loads_best = self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None
        output = super()._finalize_training(*args)
        if self.average is not None:
            if not loads_best:
                self.average.exchange()
            self.remove_callback(AverageCallback)
            self.average = None  # from here on the model has the averages itself
        return output

    def training_step(self, model: nn.Module, inputs: dict, num_items_in_batch=None) -> Tensor:
        if self.args.image_size_schedule:
            size = int(value_at(self.args.image_size_schedule, self.state))
            inputs = resize_images(inputs, size, interpolates(self.model))
        return super().training_step(model, inputs, num_items_in_batch)

    # ---- evaluation ----

    def share_buffers(self) -> None:
        """All processes take those of the first, as DDP has it: of BatchNorm, each has seen its own images alone."""
        if self.is_fsdp_enabled:
            for buffer in self.model.buffers():
                torch.distributed.broadcast(buffer, 0)

    def evaluate(self, *args, **kwargs):
        self.share_buffers()
        with self.average.applied() if self.average else nullcontext():
            return super().evaluate(*args, **kwargs)

    def predict(self, *args, **kwargs):
        self.share_buffers()
        with self.average.applied() if self.average else nullcontext():
            return super().predict(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "train_loss" in logs:  # over all steps, not over those since a resume
            logs["train_loss"] = self._total_loss_scalar / max(1, self.state.global_step)
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: dict) -> int:
        """As transformers reckons it, with the parameters counted once."""
        if self.loop.parameters is None:
            count = getattr(self.model, "num_parameters", lambda **_: 0)
            self.loop.parameters = count(exclude_embeddings=True)
        main = inputs.get(getattr(self.model, "main_input_name", "input_ids"))
        return 0 if main is None else 6 * main.numel() * self.loop.parameters

    # ---- checkpoints ----

    def checkpoint_at(self, step: int) -> Path:
        return Path(self.args.output_dir) / f"checkpoint-{step}"

    def _save_checkpoint(self, model, trial):
        if self.loop.waits_for_epoch_end():
            return
        self.store_flos()
        checkpoint, args = self.checkpoint_at(self.state.global_step), self.args
        with checkpoints.explain_failure(checkpoint):
            self.lock.check()
            folder = checkpoint.with_name(checkpoint.name + checkpoints.UNFINISHED)
            if args.should_save:
                checkpoints.begin(checkpoint)
            self.wait()
            self.save_model(str(folder), _internal_call=True)
            if not args.save_only_model:
                self._save_optimizer_and_scheduler(str(folder))
                self._save_scaler(str(folder))
                self._save_rng_state(str(folder))
                self.loop.save(folder)
                self.save_extra(folder)
            if self.average is not None and args.should_save:
                self.average.save(folder)
            self.wait()
            self.note_best(checkpoint)
            if args.should_save:
                self.save_state(folder)
                checkpoints.complete(folder, checkpoint)
        if args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))
        if args.should_save:
            checkpoints.rotate(args.output_dir, args.save_total_limit, self.state.best_model_checkpoint)
        self.wait()
        self.stop_signal.end_if_received()

    def note_best(self, checkpoint: Path) -> None:
        """Every process must know which is the best: each loads it in the end."""
        if self.state.best_global_step:
            best = self.checkpoint_at(self.state.best_global_step)
            self.state.best_model_checkpoint = str(best) if best == checkpoint or best.is_dir() else None

    def save_state(self, folder: Path) -> None:
        """trainer_state.json"""
        parts = (*self.callback_handler.callbacks, self.control)
        stateful = [part for part in parts if isinstance(part, ExportableState)]
        self.state.stateful_callbacks = TrainerState(stateful_callbacks=stateful).stateful_callbacks
        self.state.save_to_json(str(folder / "trainer_state.json"))
        if self.plan is not None:
            self.plan.save(folder)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.args.world_size > 1:
            self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        if self.is_fsdp_enabled and state_dict is not None:  # of shards that were put together, tied ones each
            tied = getattr(self.model, "all_tied_weights_keys", {})
            state_dict = {name: weight for name, weight in state_dict.items() if name not in tied}
        self.check_weights(self.model.state_dict() if state_dict is None else state_dict, self.state.global_step)
        with without_bars():
            if not folder.name.endswith(checkpoints.UNFINISHED) or not isinstance(self.model, PreTrainedModel):
                super()._save(output_dir, state_dict)
                return
            # Under the names that the model itself has: others could not be told from missing ones.
            self.model.save_pretrained(folder, state_dict=state_dict, save_original_format=False)
            if self.processing_class is not None:
                self.processing_class.save_pretrained(folder)
            torch.save(self.args, folder / "training_args.bin")

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        if self.is_fsdp_enabled or not isinstance(self.model, PreTrainedModel):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        checkpoints.load_weights(self.model if model is None else model, resume_from_checkpoint)
        if self.average is not None:
            self.average.load(resume_from_checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """The last of what is loaded. transformers goes without what has vanished meanwhile."""
        super()._load_rng_state(checkpoint)
        if checkpoint is not None and (harm := checkpoints.damage(Path(checkpoint), by_checksum=False)):
            raise CheckpointError(f"{checkpoint} was removed or changed while it was loaded: {harm}.")

    def _load_best_model(self):
        best = Path(self.state.best_model_checkpoint)
        if harm := checkpoints.damage(best):
            raise CheckpointError(
                f"the best checkpoint, {best}, is damaged: {harm}. To keep the weights of the last step instead, run "
                "the same command with --load_best_model_at_end false."
            )
        if self.is_fsdp_enabled or self.is_deepspeed_enabled or not isinstance(self.model, PreTrainedModel):
            super()._load_best_model()
            return
        checkpoints.load_weights(self.model, best)
        if self.average is not None:
            self.average.load(best)
            self.average.exchange()
