"""What all families share: `EfficientPreTrainedModel`."""

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_utils import PreTrainedModel

from .configuration import EfficientConfig


class EfficientPreTrainedModel(PreTrainedModel):
    """A `PreTrainedModel` whose attention is chosen by `config.attention`.

    Weights start from a truncated normal of `config.initializer_range`; a module with `reset_parameters` of its own
    (a mechanism, a router) starts as that says.
    """

    config: EfficientConfig
    # Random projections lose what makes them orthogonal in half precision.
    _keep_in_fp32_modules_strict = {"attention.projection", "heads.*.projection", "rotations"}

    def __init__(self, config, *args, **kwargs):
        config.validate()  # fields may have been set since the config was made
        super().__init__(config, *args, **kwargs)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # transformers skips foreign modules that own no tensor, lest they overwrite loaded ones; ours never do.
        super()._initialize_weights(module, is_custom_code=False)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Conv2d):
            init.trunc_normal_(module.weight, std=self.config.initializer_range)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif type(module).__module__.startswith("torch."):
            super()._init_weights(module)
        elif hasattr(module, "reset_parameters") and not _is_loaded(module):
            module.reset_parameters()


def _is_loaded(module: nn.Module) -> bool:
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return all(getattr(x, "_is_hf_initialized", False) for x in own or module.parameters())


def check_single_labels(labels: Tensor | None, num_labels: int) -> None:
    """Raises for class indices that don't exist; -100 marks examples that are left out of the loss."""
    if labels is None or labels.is_floating_point() or labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    wrong = labels[(labels != -100) & ((labels < 0) | (labels >= num_labels))]
    if num_labels > 1 and len(wrong):
        raise ValueError(f"labels holds {wrong[0].item()}, but the model has labels 0 to {num_labels - 1}.")
