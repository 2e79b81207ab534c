"""EfficientTrainingArguments: the section `training` of a run."""

import sys
from dataclasses import dataclass, field

import torch
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType
from transformers.training_args import OptimizerNames

from .argument_ranges import check_ranges
from .budget import Budget
from .optimizers import MUON
from .processes import build_whole_models
from .step_functions import PIXELS, PROBABILITIES, SHARES, TOKENS, read_step_function

STEP_FUNCTIONS = {
    "patch_schedule": SHARES,
    "patch_probability": PROBABILITIES,
    "image_size_schedule": PIXELS,
    "length_schedule": TOKENS,
}
LOWER_IS_BETTER = ("loss", "perplexity", "nats_per_token", "bits_per_token", "bits_per_character", "bits_per_byte")


@dataclass
class EfficientTrainingArguments(TrainingArguments):
    """transformers' TrainingArguments, with defaults that work on a laptop as they are, and:

    Args:
        budget: "8min", "1h", "20kJ": as many steps as fit into it, instead of num_train_epochs and max_steps
        optim: also "muon": Muon for the matrices in a model's blocks, AdamW for all else
        decay_share: the last share of the steps, in which the learning rate falls to 0, linearly; it is level before
        output_dir: of checkpoints, results and the trained model; by default results/<name of the run>
        ema_decay: of the moving average of the weights, used for evaluation and saved at the end; 0 = off
        early_stopping_patience: evaluations without a better metric after which training stops; null = never
        early_stopping_threshold: by how much a metric must be better
        whole_batches: leave out, in each epoch, the images that don't fill a batch; with several processes they
            would be filled up with repeated ones
        resume: go on from the newest intact checkpoint in output_dir
        logging_steps: between losses that are logged; below 1 a share of all steps
        save_strategy: by default that of evaluation
        save_steps: by default those of evaluation
        load_best_model_at_end: by default if there is evaluation
        greater_is_better: by default it follows from the metric's name
        use_cpu: by default if there is no GPU
        patch_schedule: for HuggingGreenViT, progress -> share of the patches that batches keep; {0: 0.4, 0.75: 1.0}
            keeps 40 % of them in the first three quarters of the steps; null = top_k of the model
        patch_probability: progress -> probability that a batch is reduced at all; by default 1 with patch_schedule,
            else prob of the model
        image_size_schedule: progress -> height and width that images are made for training; null = those of the data
        length_schedule: for language models, progress -> tokens that are read as one text, as {0: 64, 0.5: 128};
            memory is used where they are a whole segment of the data; null = always
        show_images: images of the evaluation are in predictions.png and example.png, which the card shows, and which
            are pushed with the model
        hub_timeout: seconds for a push to the Hub, and for all that is left to push at the end; by default 120, and
            one more for each MiB
        verbose: print every log, not only evaluations and epochs
        disable_tqdm: plain lines instead of a progress bar; by default where there is no terminal
    """

    output_dir: str | None = None
    budget: str | None = field(default=None)
    decay_share: float = field(default=1.0)
    per_device_train_batch_size: int = 32
    per_device_eval_batch_size: int = 64
    eval_strategy: IntervalStrategy | str = "epoch"
    logging_steps: float = 0.02
    logging_nan_inf_filter: bool = False
    save_strategy: SaveStrategy | str | None = None
    save_steps: float | None = None
    save_total_limit: int | None = 2
    load_best_model_at_end: bool | None = None
    restore_callback_states_from_checkpoint: bool = True
    remove_unused_columns: bool = False
    report_to: str | list[str] | None = "none"
    use_cpu: bool | None = None
    disable_tqdm: bool | None = None
    ema_decay: float = field(default=0.0)
    early_stopping_patience: int | None = field(default=None)
    early_stopping_threshold: float = field(default=0.0)
    whole_batches: bool = field(default=True)
    resume: bool = field(default=True)
    patch_schedule: dict | None = field(default=None)
    patch_probability: dict | None = field(default=None)
    image_size_schedule: dict | None = field(default=None)
    length_schedule: dict | None = field(default=None)
    show_images: bool = field(default=True)
    hub_timeout: float | None = field(default=None)
    verbose: bool = field(default=False)

    def __post_init__(self):
        check_ranges(self)
        if self.budget is not None:
            Budget.parse(self.budget)  # what is wrong with it is said now
            if self.max_steps > 0:
                raise ValueError(f"budget={self.budget!r} and max_steps={self.max_steps}: give one of them.")
        if self.decay_share < 1 and self.lr_scheduler_type != SchedulerType.LINEAR:
            raise ValueError(f"decay_share={self.decay_share} is for lr_scheduler_type: linear, not for another.")
        for name, values in STEP_FUNCTIONS.items():
            if (given := getattr(self, name)) is not None:
                setattr(self, name, read_step_function(name, given, values))
        if self.use_cpu is None:
            self.use_cpu = not torch.accelerator.is_available()
        if self.disable_tqdm is None:
            self.disable_tqdm = not sys.stderr.isatty()
        if self.dataloader_persistent_workers and not self.dataloader_num_workers:
            raise ValueError("dataloader_persistent_workers=True needs dataloader_num_workers of at least 1.")
        check_trackers(self.report_to)
        self.follow_evaluation()
        self.logging_nan_inf_filter = False  # it would hide what training must stop for
        uses_muon = self.optim == MUON
        if uses_muon:
            self.optim = OptimizerNames.ADAMW_TORCH  # transformers checks its own names
        build_whole_models()
        super().__post_init__()
        if uses_muon:
            self.optim = MUON
        if self.lr_scheduler_type == SchedulerType.REDUCE_ON_PLATEAU:
            mode = {"mode": "max" if self.greater_is_better else "min"}
            self.lr_scheduler_kwargs = mode | (self.lr_scheduler_kwargs or {})

    def follow_evaluation(self) -> None:
        """Fills in what is usually the same as for evaluation."""
        evaluates = IntervalStrategy(self.eval_strategy) != IntervalStrategy.NO
        if self.save_strategy is None:
            self.save_strategy = IntervalStrategy(self.eval_strategy).value if evaluates else "epoch"
        if self.save_steps is None:
            self.save_steps = self.eval_steps or 500
        if self.load_best_model_at_end is None:
            same = SaveStrategy(self.save_strategy).value == IntervalStrategy(self.eval_strategy).value
            self.load_best_model_at_end = evaluates and (same or self.save_strategy == SaveStrategy.BEST)
        if self.early_stopping_patience is not None and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss"
        if self.greater_is_better is None and self.metric_for_best_model is not None:
            self.greater_is_better = not self.metric_for_best_model.endswith(LOWER_IS_BETTER)

    def __getstate__(self) -> dict:
        """What is pickled, as training_args.bin is, knows no secrets."""
        return {name: None if name.endswith("_token") else value for name, value in self.__dict__.items()}


def check_trackers(names: str | list[str] | None) -> None:
    """Raises for a tracker that transformers does not know, or that is not installed."""
    there = ("none", "all", *get_available_reporting_integrations())
    for name in [names] if isinstance(names, str) else names or []:
        if name not in there and name != "flyte":  # which transformers knows, but does not look for
            raise ValueError(f"report_to={name!r} is unknown or not installed; there are {', '.join(there)}.")
