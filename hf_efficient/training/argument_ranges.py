"""What the numbers among the training arguments may be: one table, which is read before anything else is."""

import math
from collections.abc import Callable
from typing import NamedTuple


class Range(NamedTuple):
    """Finite numbers, in words and as a test."""

    words: str
    holds: Callable[[float], bool]


def between(least: float, most: float) -> Range:
    return Range(f"from {least:,} to {most:,}", lambda x: least <= x <= most)


ABOVE_0 = Range("above 0", lambda x: x > 0)
AT_LEAST_0 = Range("0 or more", lambda x: x >= 0)
AT_LEAST_1 = Range("at least 1", lambda x: x >= 1)
AT_LEAST_1_OR_NULL = Range("at least 1, or null", lambda x: x >= 1)
BELOW_1 = Range("from 0 to below 1", lambda x: 0 <= x < 1)
STEPS = Range(
    "a whole number of steps, or below 1 a share of all of them", lambda x: 0 < x < 1 or (x >= 1 and x == int(x))
)
COUNT = between(1, 2**20)
SEED = between(0, 2**32 - 1)  # what NumPy takes
# What optimizers make of these two must fit into float32, or torch raises in the middle of a step.
RANGES = {
    "learning_rate": Range("above 0, at most 1e30", lambda x: 0 < x <= 1e30),
    "weight_decay": Range("from 0 to 1e6", lambda x: 0 <= x <= 1e6),
    "max_grad_norm": Range("above 0, or 0 to clip no gradients", lambda x: x >= 0),
    "warmup_steps": Range("0 or more; below 1 it is a share of all steps", lambda x: x >= 0),
    "decay_share": Range("above 0, at most 1: a share of all steps", lambda x: 0 < x <= 1),
    "adam_beta1": BELOW_1,
    "adam_beta2": BELOW_1,
    "adam_epsilon": ABOVE_0,
    "ema_decay": Range("from 0 (off) to below 1; 0.999 is usual", lambda x: 0 <= x < 1),
    "label_smoothing_factor": BELOW_1,
    "neftune_noise_alpha": ABOVE_0,
    "num_train_epochs": ABOVE_0,
    "max_steps": Range("at least 1, or -1 for as many as the epochs have", lambda x: x >= 1 or x == -1),
    "per_device_train_batch_size": COUNT,
    "per_device_eval_batch_size": COUNT,
    "gradient_accumulation_steps": COUNT,
    "eval_accumulation_steps": AT_LEAST_1_OR_NULL,
    "torch_empty_cache_steps": AT_LEAST_1_OR_NULL,
    "logging_steps": STEPS,
    "eval_steps": STEPS,
    "save_steps": STEPS,
    "eval_delay": AT_LEAST_0,
    "save_total_limit": Range("at least 1, or null to keep all", lambda x: x >= 1),
    "early_stopping_patience": AT_LEAST_1_OR_NULL,
    "early_stopping_threshold": AT_LEAST_0,
    "seed": SEED,
    "data_seed": SEED,
    "dataloader_num_workers": between(0, 1024),
    "dataloader_prefetch_factor": AT_LEAST_1_OR_NULL,
    "ddp_bucket_cap_mb": AT_LEAST_1_OR_NULL,
    "ddp_timeout": AT_LEAST_1,
    "hub_timeout": ABOVE_0,
}


def check_ranges(arguments, ranges: dict[str, Range] = RANGES) -> None:
    """Raises for a number that an argument can't be; null passes."""
    for name, allowed in ranges.items():
        value = getattr(arguments, name)
        if isinstance(value, int | float) and not (math.isfinite(value) and allowed.holds(value)):
            raise ValueError(f"{name}={value} must be {allowed.words}.")
