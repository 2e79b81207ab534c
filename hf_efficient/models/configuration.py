"""What the configs of all families share: strict fields, no unknown keys, an attention mechanism by name."""

import difflib
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import field, fields
from functools import wraps
from typing import ClassVar

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.generation.configuration_utils import GenerationConfig

from ..attention import attention_options, get_attention, list_attentions
from ..remote_code import is_ours, write_code

# What transformers itself writes into a config.json or passes to a config, beyond its fields, today and in version 4.
TRANSFORMERS_KEYS = {
    *("add_cross_attention", "attn_implementation", "auto_map", "bos_token_id", "cross_attention_hidden_size"),
    *("custom_pipelines", "decoder_start_token_id", "eos_token_id", "experts_implementation", "finetuning_task"),
    *("is_decoder", "model_type", "name_or_path", "pad_token_id", "per_layer_config", "prefix", "pruned_heads"),
    *("quantization_config", "sep_token_id", "task_specific_params", "tf_legacy_loss", "tie_encoder_decoder"),
    *("tie_last_hidden_states", "tie_word_embeddings", "tokenizer_class", "torchscript", "use_bfloat16", "use_cache"),
}


AT_MOST_1 = ("initializer_range", "layer_norm_eps")
POOLING_KEYS = {
    "after": "the layers behind which tokens are pooled, counted from 1",
    "keep": "the share of tokens that is left each time",
    "method": "'kmeans' or 'kmedoids'",
    "iterations": "of assigning tokens and moving centres",
}
MOST_LABELS = 10_000_000  # whose names alone take gigabytes


class ConfigError(StrictDataclassError, ValueError):
    """What is wrong with a config; huggingface_hub's own error is no `ValueError`."""


def strict_config(cls: type) -> type:
    """`@strict`, with errors that name the config and are `ValueError`s."""
    cls = strict(cls)
    cls.__init__, cls.__setattr__ = _explain(cls.__init__), _explain(cls.__setattr__)
    cls.validate = _explain(cls.validate)
    cls.validate.__is_defined_by_strict_decorator__ = True
    return cls


def _explain(method: Callable) -> Callable:
    @wraps(method)
    def wrapper(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except ConfigError:
            raise
        except (StrictDataclassError, ValueError) as error:
            reason = error.__cause__ if isinstance(error, StrictDataclassError) and error.__cause__ else error
            raise ConfigError(f"{type(self).__name__}: {reason}") from error

    return wrapper


def check_num_labels(value) -> None:
    """Raises for what is no number of labels, before transformers makes names for so many."""
    if value is not None and (type(value) is not int or not 0 <= value <= MOST_LABELS):
        raise ValueError(f"num_labels={value!r} must be a whole number, at most {MOST_LABELS:,}.")


def _is_finite(value) -> bool:
    """Whether it holds no NaN or infinity, wherever it holds numbers."""
    if isinstance(value, dict | list | tuple):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


@strict_config
class EfficientConfig(PreTrainedConfig):
    """Base of every config.

    Args:
        attention: a registered mechanism.
        attention_options: its options, what `build_attention` takes beyond sizes.
    """

    model_module: ClassVar[str | None] = None  # of the model that was saved last, never stored
    presets: ClassVar[dict[str, dict]] = {}  # fields of the sizes that a family has names for

    attention: str = "softmax"
    attention_options: dict = field(default_factory=dict)

    def __post_init__(self, **kwargs):
        self.refuse_unknown(kwargs)
        num_labels = kwargs.get("num_labels")
        check_num_labels(num_labels)
        if self.id2label is not None and num_labels is not None and len(self.id2label) != num_labels:
            raise ValueError(f"num_labels={num_labels}, but id2label names {len(self.id2label)} labels.")
        super().__post_init__(**kwargs)
        if self.label2id is None and self.id2label is not None:
            self.label2id = {label: index for index, label in self.id2label.items()}

    @classmethod
    def from_preset(cls, name: str, **fields):
        """A size by name (`presets`), with any field changed."""
        if name not in cls.presets:
            raise ValueError(f"unknown preset {name!r}; known: {', '.join(cls.presets)}.")
        return cls(**{**cls.presets[name], **fields})

    @classmethod
    def from_dict(cls, config_dict: dict, **kwargs):
        """What is given beside a stored config goes before it: a new number of labels does away with the old names.

        Keys that nobody here knows are kept: what a person noted in a config, or a later version wrote.
        """
        if kwargs.get("num_labels") is not None or kwargs.get("id2label") is not None:
            config_dict = {key: value for key, value in config_dict.items() if key not in ("id2label", "label2id")}
            config_dict |= {key: kwargs.pop(key) for key in ("id2label", "label2id") if key in kwargs}
        notes = {key: config_dict[key] for key in cls.unknown_keys(config_dict)}
        notes |= {key: kwargs.pop(key) for key in notes if key in kwargs}
        found = super().from_dict({key: x for key, x in config_dict.items() if key not in notes}, **kwargs)
        config = found[0] if isinstance(found, tuple) else found
        for key, value in {**notes, "model_type": cls.model_type}.items():  # which a file of ViT, say, would change
            setattr(config, key, value)
        config.validate()
        return found

    def save_pretrained(self, save_directory: str | os.PathLike, *args, **kwargs) -> None:
        """As transformers does, with the code of the family beside it (`remote_code.py`)."""
        write_code(self, save_directory)
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class="AutoConfig") -> None:
        """Needless: the code of hf_efficient's classes is always saved, for all Auto classes."""
        if not is_ours(cls.__module__):
            super().register_for_auto_class(auto_class)

    def to_dict(self) -> dict:
        return {key: value for key, value in super().to_dict().items() if key != "model_module"}

    @classmethod
    def unknown_keys(cls, keys: Iterable[str]) -> list[str]:
        known = {f.name for f in fields(cls)} | TRANSFORMERS_KEYS
        known |= set(GenerationConfig._get_default_generation_params())
        return [key for key in keys if key not in known and not key.startswith("_") and not hasattr(cls, key)]

    def refuse_unknown(self, kwargs: dict) -> None:
        own = {f.name for f in fields(self)}
        for key in kwargs:
            found = getattr(type(self), key, None)
            if callable(found) or (isinstance(found, property) and found.fset is None):
                raise ValueError(f"{key!r} is a method of {type(self).__name__}: it can't be a key.")
        for key in self.unknown_keys(kwargs):
            close = difflib.get_close_matches(key, own, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(own))}."
            raise ValueError(f"unknown key {key!r}; {hint}")

    def validate_labels(self):
        if self.id2label is not None and set(self.id2label) != set(range(len(self.id2label))):
            raise ValueError(f"id2label must have the keys 0 to {len(self.id2label) - 1}, got {list(self.id2label)}.")

    def validate_attention(self):
        if self.attention not in list_attentions():
            raise ValueError(f"attention={self.attention!r} is unknown; known: {', '.join(list_attentions())}.")
        if reason := self.misfit(self.attention):
            fitting = ", ".join(name for name in list_attentions() if not self.misfit(name))
            raise ValueError(f"attention={self.attention!r} {reason}. Mechanisms that fit: {fitting}.")
        for option in self.attention_options:
            if option not in (valid := attention_options(self.attention)):
                raise ValueError(
                    f"attention_options has no {option!r} for '{self.attention}' attention; "
                    f"valid: {', '.join(sorted(valid))}. Options of another mechanism are dropped by "
                    "attention_options={} (attention_options: {} in a YAML, --attention_options '{}' after a command)."
                )

    def switch_attention(self, name: str) -> None:
        """Another mechanism for the same weights, with its own options; raises where weights would be lost or missing.
        Both mechanisms must learn nothing beyond queries, keys, values and outputs."""
        free = list_attentions(parameter_free=True)
        if name == self.attention:
            return
        if name not in free or self.attention not in free:
            reason = f"known: {', '.join(free)}"
            if self.attention not in free:
                reason = f"it has attention={self.attention!r}, which has weights of its own"
            raise ValueError(
                f"attn_implementation={name!r} can't be set for {type(self).__name__}: {reason}. Choose another "
                "mechanism for a new model by config.attention, for a trained one by convert_attention."
            )
        before = self.attention, self.attention_options
        try:
            self.attention, self.attention_options = name, {}
            self.validate()
        except ValueError:
            self.attention, self.attention_options = before
            raise

    def misfit(self, name: str) -> str | None:
        """Why a mechanism can't be used with the other fields ("needs ..."), or None if it can."""
        return None

    def validate_positive(self):
        for name in self.positive_fields():
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value!r} must be positive.")

    def validate_numbers(self):
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if not _is_finite(value):
                raise ValueError(f"{name}={value!r} must be finite.")
            if name in AT_MOST_1 and value > 1:
                raise ValueError(f"{name}={value!r} must be at most 1.")

    def positive_fields(self) -> tuple[str, ...]:
        """Names of the fields that must be above 0."""
        return ()


def per_channel(value: float | list[float] | tuple[float, ...], channels: int) -> tuple[float, ...]:
    """A number for each channel, from those or from one for all."""
    return (value,) * channels if isinstance(value, float | int) else tuple(value)


def check_normalisation(config: EfficientConfig) -> None:
    """Raises for an image_mean or image_std that no image can be normalised with."""
    for name in ("image_mean", "image_std"):
        value = getattr(config, name)
        if not isinstance(value, float | int) and len(value) != config.num_channels:
            raise ValueError(f"{name}={value!r} must have one value for each of num_channels={config.num_channels}.")
    if min(per_channel(config.image_std, config.num_channels), default=1) <= 0:
        raise ValueError(f"image_std={config.image_std!r} must be positive.")


@strict_config
class EncoderConfig(EfficientConfig):
    """What encoders of pre-norm blocks (`layers/block.py`) share, in transformers' words, and:

    Args:
        head_dim: of each head; by default hidden_size / num_attention_heads.
        qk_norm: RMSNorm of queries and keys, with learned gains, in every head.
        zero_init_outputs: start with 0 where attention and MLP go into the residual stream: the attention's o_proj, if
            it has one, and the MLP's fc2.
    """

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    head_dim: int | None = None
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    qkv_bias: bool = True
    qk_norm: bool = False
    zero_init_outputs: bool = False

    @property
    def num_positions(self) -> int:
        """The most tokens that there can be, prefix included."""
        raise NotImplementedError

    def positive_fields(self):
        sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "intermediate_size")
        return (*sizes, "layer_norm_eps", "initializer_range")

    def validate_blocks(self):
        if self.head_dim is None and self.num_attention_heads > 0 and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} does not divide by num_attention_heads={self.num_attention_heads}: "
                "choose a divisor, or give head_dim."
            )
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act={self.hidden_act!r} is unknown; known: {', '.join(sorted(ACT2FN))}.")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must lie in [0, 1).")

    def misfit(self, name):
        if not get_attention(name).per_head and self.qk_norm:
            return "has no queries and keys of heads to normalise: set qk_norm=False"
        return None

    def options_of_layer(self, index: int) -> dict:
        """What layer `index` passes to `build_attention`."""
        options = {"bias": self.qkv_bias, "dropout": self.attention_probs_dropout_prob, "layer_idx": index}
        if self.head_dim is not None:
            options["head_dim"] = self.head_dim
        if self.qk_norm:
            options["qk_norm"] = True
        if "max_length" in attention_options(self.attention):
            options["max_length"] = self.num_positions
        return {**options, **self.attention_options}

    def block_options(self) -> dict:
        """What every layer passes to `TransformerBlock`, beside its attention."""
        return {
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "hidden_act": self.hidden_act,
            "dropout": self.hidden_dropout_prob,
            "layer_norm_eps": self.layer_norm_eps,
            "zero_init_outputs": self.zero_init_outputs,
        }


@strict_config
class VisionTransformerConfig(EncoderConfig):
    """transformers' ViT fields, those of `EncoderConfig`, and:

    Args:
        use_cls_token: a learned token before the patches. Without one images are pooled by the mean, and mechanisms
            that need a whole grid of tokens (axial, window) fit.
        stem: how patches become tokens: "patch" by one linear map, as ViT does; "conv" or "patch_conv" by small
            convolutions, overlapping or not (`layers/stem.py`), for which patch_size must be a power of two.
        stem_width: channels of the stem's first convolution; those of the last are hidden_size by default.
        token_pooling: fewer tokens behind some layers (`layers/token_pooling.py`): {"after": [3, 6, 9], "keep": 0.7}
            clusters the patches' tokens behind layers 3, 6 and 9 and goes on with ⌈0.7 n⌉ of the n that came;
            "method" ("kmeans", "kmedoids") and "iterations" may be given too. None keeps all.
    """

    image_size: int | list[int] | tuple[int, int] = 224
    patch_size: int = 16
    num_channels: int = 3
    use_cls_token: bool = True
    stem: str = "patch"
    stem_width: int | None = None
    token_pooling: dict | None = None

    @property
    def image_shape(self) -> tuple[int, int]:
        """Rows and columns of pixels."""
        return (self.image_size,) * 2 if isinstance(self.image_size, int) else tuple(self.image_size)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return tuple(pixels // self.patch_size for pixels in self.image_shape)

    @property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def num_prefix_tokens(self) -> int:
        return int(self.use_cls_token)

    @property
    def num_positions(self) -> int:
        return self.num_prefix_tokens + self.num_patches

    def positive_fields(self):
        return (*super().positive_fields(), "patch_size", "num_channels", "stem_width")

    def validate_shape(self):
        if len(self.image_shape) != 2 or min(self.image_shape) <= 0:
            raise ValueError(f"image_size={self.image_size!r} must be a positive size, or (height, width).")
        if self.patch_size > 0 and any(pixels % self.patch_size for pixels in self.image_shape):
            raise ValueError(f"image_size={self.image_size!r} must be a multiple of patch_size={self.patch_size}.")

    def validate_stem(self):
        if self.stem not in ("patch", "conv", "patch_conv"):
            raise ValueError(f"stem={self.stem!r} must be 'patch', 'conv' or 'patch_conv'.")
        if self.stem != "patch" and (self.patch_size < 2 or self.patch_size & (self.patch_size - 1)):
            raise ValueError(f"patch_size={self.patch_size} must be 2, 4, 8, 16, ... with stem={self.stem!r}.")

    def validate_token_pooling(self):
        if self.token_pooling is None:
            return
        for key in self.token_pooling:
            if key not in POOLING_KEYS:
                raise ValueError(f"token_pooling has no {key!r}; valid: {', '.join(POOLING_KEYS)}.")
        for key in ("after", "keep"):
            if key not in self.token_pooling:
                raise ValueError(f"token_pooling={self.token_pooling!r} needs {key!r}: {POOLING_KEYS[key]}.")
        after, keep = self.token_pooling["after"], self.token_pooling["keep"]
        layers = range(1, self.num_hidden_layers)
        if (
            not isinstance(after, list | tuple)
            or not after
            or any(type(x) is not int or x not in layers for x in after)
        ):
            raise ValueError(
                f"token_pooling.after={after!r} must be a list of layers from 1 to {self.num_hidden_layers - 1}: of "
                f"num_hidden_layers={self.num_hidden_layers}, at least one has to follow."
            )
        if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep <= 1:
            raise ValueError(f"token_pooling.keep={keep!r} is a share of the tokens: it must lie in (0, 1].")
        if (method := self.token_pooling.get("method", "kmeans")) not in ("kmeans", "kmedoids"):
            raise ValueError(f"token_pooling.method={method!r} must be 'kmeans' or 'kmedoids'.")
        iterations = self.token_pooling.get("iterations", 1)
        if type(iterations) is not int or iterations < 1:
            raise ValueError(f"token_pooling.iterations={iterations!r} must be a positive integer.")

    def misfit(self, name):
        if get_attention(name).needs_grid and self.use_cls_token:
            return "needs a grid of patches without CLS: set use_cls_token=False"
        if get_attention(name).needs_grid and self.token_pooling is not None:
            return "needs the whole grid of patches: set token_pooling to None"
        return super().misfit(name)
