"""Patch selection as a schedule over a run: few patches first, whole images last."""

from collections.abc import Mapping

from torch import nn

from .callbacks import EpochCallback
from .errors import RunError
from .step_functions import PROBABILITIES, SHARES, read_step_function, value_at


class PatchSelectionCallback(EpochCallback):
    """Tells a model with patch selection, as HuggingGreenViT is, how far training has come. For any Trainer.

    Without arguments the model follows its own config: `prob` decays with the epochs. Otherwise these are functions of
    progress (`step_functions.py`).

    Args:
        kept: progress -> share of the patches that batches keep; None for the model's `top_k`.
        prob: progress -> probability that a batch is reduced at all; by default 1 where `kept` is given.

    Example:
        >>> Trainer(model, ..., callbacks=[PatchSelectionCallback(kept={0: 0.4, 0.75: 1.0})])
    """

    def __init__(self, kept: Mapping | None = None, prob: Mapping | None = None):
        prob = {0: 1.0} if prob is None and kept is not None else prob
        self.kept = None if kept is None else read_step_function("kept", kept, SHARES)
        self.prob = None if prob is None else read_step_function("prob", prob, PROBABILITIES)

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        check_patch_selection(model)

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        share, prob = (None if given is None else value_at(given, state) for given in (self.kept, self.prob))
        model.set_patch_share(share, prob)

    def on_train_end(self, args, state, control, model=None, **kwargs):
        model.set_patch_share(None)


def check_patch_selection(model: nn.Module) -> None:
    """Raises for models that keep all patches."""
    if not hasattr(model, "set_patch_share"):
        name = type(model).__name__
        raise RunError(
            f"a patch schedule needs a model that selects patches, as HuggingGreenViT does; {name} doesn't."
        )
    if getattr(model, "backbone_is_frozen", False):
        raise RunError("a patch schedule needs a backbone that is trained; a frozen one runs as in evaluation.")
    try:
        model.set_patch_share(None)
    except ValueError as error:
        raise RunError(f"a patch schedule needs a model that selects patches: {error}") from error
