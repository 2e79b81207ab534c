"""Patch selection as a schedule over a run: few patches first, whole images last.

Share and probability are piecewise constant functions of progress = steps taken / all steps: {0: 0.4, 0.75: 1.0} is
0.4 up to three quarters of the run, and 1 from there on. They depend on the step alone, so resumed runs make the same
choices.
"""

import math
from collections.abc import Mapping

from transformers import TrainerCallback
from transformers.modeling_utils import PreTrainedModel

from .errors import RunError

Schedule = dict[float, float]


class PatchSelectionCallback(TrainerCallback):
    """Tells a model with patch selection, as HuggingGreenViT is, what share of the patches its batches keep, and with
    what probability a batch is reduced at all. For any Trainer.

    Args:
        kept: progress -> share of the patches; None for the model's `top_k`.
        prob: progress -> probability; by default 1 if there is `kept`.

    Example:
        >>> Trainer(model, ..., callbacks=[PatchSelectionCallback(kept={0: 0.4, 0.75: 1.0})])
    """

    def __init__(self, kept: Mapping | None = None, prob: Mapping | None = None):
        if kept is None and prob is None:
            raise ValueError("PatchSelectionCallback needs kept, prob, or both.")
        self.kept = None if kept is None else read_schedule("kept", kept, above_zero=True)
        self.prob = {0.0: 1.0} if prob is None else read_schedule("prob", prob)

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        check_patch_selection(model)

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        progress = state.global_step / state.max_steps
        share = None if self.kept is None else value_at(self.kept, progress)
        model.set_patch_share(share, value_at(self.prob, progress))

    def on_train_end(self, args, state, control, model=None, **kwargs):
        model.set_patch_share(None)


def check_patch_selection(model: PreTrainedModel) -> None:
    """Raises for models that keep all patches."""
    if not hasattr(model, "set_patch_share"):
        name = type(model).__name__
        raise RunError(
            f"a patch schedule needs a model that selects patches, as HuggingGreenViT does; {name} doesn't."
        )
    try:
        model.set_patch_share(None)
    except ValueError as error:
        raise RunError(f"a patch schedule needs a model that selects patches: {error}") from error


def read_schedule(field: str, schedule: Mapping, above_zero: bool = False) -> Schedule:
    """A schedule with numbers for keys (JSON has strings), in order; raises if it is none.

    Args:
        field: what errors call it.
        above_zero: values lie in (0, 1] instead of [0, 1].
    """
    if not isinstance(schedule, Mapping):
        raise ValueError(f"{field}={schedule!r} must be a mapping of progress to values, as {{0: 0.4, 0.75: 1.0}}.")
    found = {}
    for key, value in schedule.items():
        progress, number = to_number(key), to_number(value)
        if not 0 <= progress < 1:
            raise ValueError(
                f"{field}: progress {key!r} must be a number from 0 to below 1, the share of steps taken."
            )
        if not 0 <= number <= 1 or (above_zero and not number):
            raise ValueError(f"{field}: {value!r}, from {key} on, must lie in {'(' if above_zero else '['}0, 1].")
        found[progress] = number
    if 0 not in found:
        raise ValueError(f"{field}={dict(schedule)} must say what holds from progress 0 on.")
    return dict(sorted(found.items()))


def to_number(value) -> float:
    """NaN for what is no number."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return math.nan


def value_at(schedule: Schedule, progress: float) -> float:
    """The value that holds at some progress."""
    return schedule[max(start for start in schedule if start <= progress)]
