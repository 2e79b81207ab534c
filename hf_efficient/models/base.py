"""What all families share: `EfficientPreTrainedModel`."""

import os
import re
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_utils import PreTrainedModel

from ..attention import Attention
from ..remote_code import is_ours
from .checkpoint_paths import check_folder
from .configuration import EfficientConfig

# Random projections lose what makes them orthogonal in half precision.
RANDOM_PROJECTIONS = (r"attention.projection", r"heads.*.projection", r"rotations")


class EfficientPreTrainedModel(PreTrainedModel):
    """A `PreTrainedModel` whose attention is chosen by `config.attention`.

    Weights start from a truncated normal of `config.initializer_range`; a module with `reset_parameters` of its own
    (a mechanism, a router) starts as that says.
    """

    config: EfficientConfig

    def __init__(self, config, *args, **kwargs):
        config.validate()  # fields may have been set since the config was made
        super().__init__(config, *args, **kwargs)

    def post_init(self):
        super().post_init()
        buffers = [name for name, _ in self.named_buffers()]
        self._keep_in_fp32_modules_strict = {
            pattern for pattern in RANDOM_PROJECTIONS if any(re.search(pattern, name) for name in buffers)
        }
        # Every rank counts alike. What DDP would send in each step had to be read again, and waited for.
        self._ddp_params_and_buffers_to_ignore = [
            name for name, x in self.named_buffers() if not x.is_floating_point()
        ]
        self.config.architectures = [type(self).__name__]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """As transformers does; NaN or infinity among the weights is a warning that names them. What names shards or
        a tokenizer's files outside the folder is refused."""
        if pretrained_model_name_or_path is not None:
            check_folder(os.path.join(pretrained_model_name_or_path, kwargs.get("subfolder") or ""))
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        if broken := [name for name, x in model.state_dict().items() if not is_finite(x)]:
            names = ", ".join(broken[:5]) + (", ..." if len(broken) > 5 else "")
            warnings.warn(
                f"{len(broken)} of the weights hold NaN or infinity: {names}. The training diverged, or the file is "
                "damaged.",
                stacklevel=2,
            )
        return loaded

    def save_pretrained(self, save_directory: str | os.PathLike, is_main_process: bool = True, *args, **kwargs):
        """As transformers does, with the code of the model beside it (`remote_code.py`)."""
        self.config.model_module = type(self).__module__
        saved = super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        if is_main_process:
            for pattern in (".tmp??????", ".*.py.*.tmp"):  # left by processes that were killed while they saved
                for leftover in Path(save_directory).glob(pattern):
                    leftover.unlink(missing_ok=True)
        return saved

    @classmethod
    def register_for_auto_class(cls, auto_class="AutoModel") -> None:
        """Needless: the code of hf_efficient's classes is always saved, for all Auto classes."""
        if not is_ours(cls.__module__):
            super().register_for_auto_class(auto_class)

    def _check_and_adjust_attn_implementation(self, attn_implementation, is_init_check: bool = False, **kwargs) -> str:
        """`attn_implementation` is another way to say `config.attention`, for mechanisms without weights of their own.
        To transformers the model is always "eager"."""
        if attn_implementation not in (None, "eager"):
            self.config.switch_attention(attn_implementation)
            if not is_init_check:
                self.rebuild_attention()
        return "eager"

    def rebuild_attention(self) -> None:
        """Makes the mechanisms that the config now names; projections and norms stay the same modules."""
        with torch.device("meta"):
            twin = type(self)(self.config)
        for name, new in twin.named_modules():
            if isinstance(new, Attention):
                old, (parent, _, place) = self.get_submodule(name), name.rpartition(".")
                for child, module in old.named_children():
                    setattr(new, child, module)
                new.to_empty(device=self.device, recurse=False)
                if hasattr(new, "reset_parameters"):
                    new.reset_parameters()
                setattr(self.get_submodule(parent), place, new.train(old.training))
        for model in self.modules():
            if isinstance(model, EfficientPreTrainedModel):
                model.note_attention()

    def note_attention(self) -> None:
        """What a family keeps of its config's attention is to be made anew."""

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


def is_finite(x: Tensor) -> bool:
    quantised = (
        type(x) not in (Tensor, nn.Parameter) or x.element_size() == 1
    )  # others' tensors need not know the functions below
    if quantised or x.is_meta or not x.is_floating_point():
        return True
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())  # the sum is quick, but may overflow


def check_single_labels(labels: Tensor | None, num_labels: int) -> None:
    """Raises for class indices that don't exist; -100 marks examples that are left out of the loss."""
    if labels is None or labels.is_floating_point() or labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    wrong = labels[(labels != -100) & ((labels < 0) | (labels >= num_labels))]
    if num_labels > 1 and len(wrong):
        raise ValueError(f"labels holds {wrong[0].item()}, but the model has labels 0 to {num_labels - 1}.")
