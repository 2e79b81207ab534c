"""Builds the model that the section `model` of a run asks for.

The section is {model_type: ..., fields of its config}, or {pretrained: ..., fields to override}. With both, weights of
`pretrained` go into a model of `model_type`, as `KerformerViTModel.from_pretrained("google/vit-...")` does it. Any
model of transformers works, ours included. Keys that its config does not have are refused here, since transformers'
own configs take anything.
"""

import dataclasses
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch
from transformers import AutoConfig, set_seed
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

import hf_efficient  # noqa: F401  registers our models

from ..errors import ANYTHING, told
from ..models.configuration import check_num_labels
from .errors import RunError
from .run_keys import Key, check_keys, explanations, suggestion

OWN_KEYS = {
    "model_type": Key("model_type", help="the family: hugginggreen_vit, kerformer_vit, ..., or any of transformers'"),
    "pretrained": Key(
        "pretrained", None, "a folder or repository whose weights to begin with; its type, if there is no model_type"
    ),
    "freeze_backbone": Key("freeze_backbone", False, "train only what stands on the backbone"),
}
# How configs call their numbers of layers, and the bytes that a layer takes even if it has no weights.
LAYERS, LAYER = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "n_attn_blocks", "depths"), 50_000
PROBLEM = "single_label_classification"  # what runs train
SEVERAL_CLASSES = "num_labels"  # no field, but every config takes it


def config_class(section: dict) -> type[PreTrainedConfig]:
    model_type = section.get("model_type")
    if section.get("pretrained") and not model_type:
        return type(_pretrained_config(section["pretrained"]))
    if not model_type:
        raise RunError("model.model_type is missing. Set it, or model.pretrained, to say which model to train.")
    if model_type not in CONFIG_MAPPING:
        raise RunError(f"model.model_type={model_type!r} is unknown; {suggestion(model_type, CONFIG_MAPPING)}")
    return CONFIG_MAPPING[model_type]


def _pretrained_config(source: str) -> PreTrainedConfig:
    with told(f"model.pretrained={source!r} can't be read", RunError, ANYTHING):
        return AutoConfig.from_pretrained(source)


def model_keys(section: dict) -> dict[str, Key]:
    """What the section may hold: fields of the config that it names."""
    cls = config_class(section)
    explained = explanations(cls)
    base = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    found = dict(OWN_KEYS)
    for field in sorted(dataclasses.fields(cls), key=lambda field: field.name in base):  # its own come first
        if field.init and not field.name.startswith("_"):
            default = field.default_factory() if callable(field.default_factory) else field.default
            found[field.name] = Key(field.name, default, explained.get(field.name, ""))
    found[SEVERAL_CLASSES] = Key(SEVERAL_CLASSES, None, "classes; by default those of the dataset")
    found |= {alias: Key(alias, help=f"= {name}") for alias, name in cls.attribute_map.items() if alias not in found}
    return found


def build_config(section: dict, **facts) -> PreTrainedConfig:
    """The config of a section.

    Args:
        facts: what the data say of it, as num_labels, id2label, image_mean; the section goes before them where it
            fits the data (`check_facts`). Those that the config has no field for are left out.
    """
    keys = model_keys(section)
    check_keys("model", section, keys)
    fields = {key: value for key, value in section.items() if key not in OWN_KEYS}
    check_facts(fields, facts)
    if odd := next((key for key, x in fields.items() if isinstance(x, float) and not math.isfinite(x)), None):
        raise RunError(f"model.{odd}={fields[odd]} must be finite.")
    fields = {key: value for key, value in facts.items() if key in keys} | fields
    if "id2label" in fields:
        fields.pop("num_labels", None)  # follows from it
    check_layers(fields)
    if section.get("pretrained"):
        _pretrained_config(section["pretrained"])  # whose faults are not those of the fields
    with told("model", RunError, ANYTHING):
        check_num_labels(section.get("num_labels"))
        if section.get("pretrained"):
            config = config_class(section).from_pretrained(section["pretrained"], **fields)
            config.model_type = type(config).model_type  # the stored one may be another
            return config
        return AutoConfig.for_model(section["model_type"], **fields)


def check_facts(fields: dict, facts: dict) -> None:
    """Raises for fields that the data don't fit."""
    classes, labels = facts.get("num_labels"), fields.get("id2label")
    if labels is not None and not isinstance(labels, dict):
        raise RunError(f"model.id2label={labels!r} must be a mapping of numbers to names.")
    for name, stated in (("num_labels", fields.get("num_labels")), ("len(id2label)", labels and len(labels))):
        if None not in (stated, classes) and stated != classes:
            raise RunError(f"model.{name}={stated}, but the dataset has {classes} classes.")
    channels = len(facts.get("image_mean", ()))
    if channels and fields.get("num_channels", channels) != channels:
        raise RunError(f"model.num_channels={fields['num_channels']} must be {channels}: images are read as RGB.")
    if classes and (problem := fields.get("problem_type")) not in (None, PROBLEM):
        raise RunError(f"model.problem_type={problem!r} must be {PROBLEM}, or null.")


def check_layers(fields: dict) -> None:
    """Raises for more layers than the machine's memory could hold, even if they had no weights."""
    memory = psutil.virtual_memory().total
    for name, value in fields.items():
        parts = value if isinstance(value, list | tuple) else [value]
        if name in LAYERS and all(isinstance(x, int | float) for x in parts) and sum(parts) * LAYER > memory:
            raise RunError(f"model.{name}={value}: so many layers don't fit into the {gib(memory)} of this machine.")


def check_memory(config: PreTrainedConfig, auto_class: type) -> None:
    """Raises if the weights alone take more than the machine's memory."""
    memory = psutil.virtual_memory().total
    check_layers(config.to_dict())
    try:
        with torch.device("meta"):
            needed = auto_class.from_config(config).get_memory_footprint()
    except Exception as error:  # that of a tensor beyond all bounds; any other is met again outside of meta
        needed = math.inf if "overflow" in str(error).lower() else 0
    if needed > memory:
        numbers = {name: value for name, value in config.to_dict().items() if type(value) is int}
        largest = max(numbers, key=numbers.get)
        raise RunError(
            f"model.{largest}={numbers[largest]}: the weights alone would take {gib(needed)}, and this machine has "
            f"{gib(memory)}."
        )


def gib(size: float) -> str:
    return f"{size / 2**30:,.0f} GiB"


def build_model(section: dict, auto_class: type, *, seed: int, **facts) -> PreTrainedModel:
    """The model of a section, made by one of transformers' Auto classes; the same for the same seed.

    Args:
        facts: see `build_config`.
    """
    config = build_config(section, **facts)
    check_memory(config, auto_class)
    set_seed(seed)
    where = f"model.pretrained={section['pretrained']!r}" if section.get("pretrained") else "model"
    with told(where, RunError, ANYTHING):
        if section.get("pretrained"):
            model = load_pretrained(section["pretrained"], auto_class, config)
        else:
            model = auto_class.from_config(config)
    if section.get("freeze_backbone"):
        if not hasattr(model, "freeze_backbone"):
            raise RunError(f"model.freeze_backbone: {type(model).__name__} has no method freeze_backbone.")
        model.freeze_backbone()
    return model


def load_pretrained(source: str, auto_class: type, config: PreTrainedConfig) -> PreTrainedModel:
    """A model with the weights of `source`. What stands on the backbone may start anew, the backbone may not."""
    stored = _pretrained_config(source).model_type
    try:
        with without_reports():
            model, found = auto_class.from_pretrained(
                source, config=config, ignore_mismatched_sizes=True, output_loading_info=True
            )
    except TypeError as error:
        if stored == config.model_type:
            raise
        raise RunError(f"model.pretrained={source!r} is a {stored}: it can't become a {config.model_type}.") from error
    weights = [name for name, _ in model.named_parameters()]
    backbone = [name for name in weights if name.startswith(f"{model.base_model_prefix}.")] or weights
    shapes = {name: (list(there), list(here)) for name, there, here in found["mismatched_keys"]}
    missing = [name for name in backbone if name in found["missing_keys"] and name not in shapes]
    if wrong := [name for name in backbone if name in shapes]:
        there, here = shapes[wrong[0]]
        raise RunError(
            f"model.pretrained={source!r} does not fit: {wrong[0]} is {there} there and {here} here"
            f"{f', and {len(wrong) - 1} more' if len(wrong) > 1 else ''}. Leave out the fields of model that differ."
        )
    if len(missing) == len(backbone):
        raise RunError(
            f"model.pretrained={source!r} holds none of the weights of a {config.model_type}: give one that does, or "
            "leave out model_type to train the model that it is."
        )
    if missing:
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        warnings.warn(f"{len(missing)} weights that {source} does not have start anew: {names}.", stacklevel=2)
    model.weights_from = told_weights(source, model, found["missing_keys"] | shapes.keys())
    return model


@contextmanager
def without_reports() -> Iterator[None]:
    """Without transformers' tables of all weights that start anew; `told_weights` says it in a line."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def told_weights(source: str, model: PreTrainedModel, anew: set[str]) -> str:
    """How much of a model is from `source`, and what is not."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    new = {name: size for name, size in sizes.items() if name in anew}
    count = sum(new.values())
    text = f"{sum(sizes.values()) - count:,} parameters from {source}"
    return text + (f", {count:,} start anew: {', '.join(dict.fromkeys(x.split('.')[0] for x in new))}" if new else "")
