"""What is no number ends training: a loss or gradient before the step, weights after it or before a save."""

import math

from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from ..models.base import is_finite
from .checkpoints import list_checkpoints
from .errors import NonFiniteError


class FiniteMixin:
    """Goes before a Trainer among the bases of a class."""

    def training_step(self, model: nn.Module, inputs: dict, num_items_in_batch=None) -> Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not loss.isfinite():
            self.stop_for("loss", loss)
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        grad_norm = super()._get_grad_norm(model, grad_norm)
        scaled = getattr(self.accelerator, "scaler", None) is not None  # which expects inf, and skips the step
        if not scaled and not math.isfinite(grad_norm):
            self.stop_for("gradient norm", grad_norm)
        return grad_norm

    def check_step(self) -> None:
        """After the optimizer's step: it read the weights several times, this does it once. Shards wait for a save."""
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            return
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"] if weight.numel()]
        if not get_total_norm(weights).isfinite():  # it may overflow, so they are looked at
            self.check_weights(self.model.state_dict(), self.state.global_step + 1)

    def check_weights(self, weights: dict[str, Tensor], step: int) -> None:
        """Raises if some are no numbers."""
        if broken := [name for name, weight in weights.items() if not is_finite(weight)]:
            named = ", ".join(broken[:3]) + (", ..." if len(broken) > 3 else "")
            self.stop(
                f"{len(broken)} of the weights are NaN or infinite after step {step}: {named}. They are not saved"
            )

    def stop_for(self, what: str, value: Tensor | float) -> None:
        place = f"in step {self.state.global_step + 1} (epoch {self.state.epoch or 0:.2f})"
        self.stop(f"the {what} is {float(value)} {place}. The weights have not been changed by it")

    def stop(self, reason: str) -> None:
        kept = list_checkpoints(self.args.output_dir)
        last = f"the last checkpoint, {kept[-1]}, is as it was" if kept else "no checkpoint has been saved yet"
        raise NonFiniteError(
            f"{reason}, and {last}. Try a lower learning_rate ({self.args.learning_rate}), more "
            f"warmup_steps, a lower max_grad_norm ({self.args.max_grad_norm}), bf16 instead of fp16, or look for NaN "
            "in the data; then give another output_dir."
        )
