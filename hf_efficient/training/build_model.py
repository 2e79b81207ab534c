"""Builds the model that the section `model` of a run asks for.

The section is {model_type: ..., fields of its config}, or {pretrained: ..., fields to override}. Any model of
transformers works, ours included. Keys that its config does not have are refused here, since transformers' own
configs take anything.
"""

import dataclasses
import math

import psutil
import torch
from transformers import AutoConfig, set_seed
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import hf_efficient  # noqa: F401  registers our models

from ..errors import UNLOADABLE, told
from ..models.configuration import check_num_labels
from .errors import RunError
from .run_keys import Key, check_keys, explanations, suggestion

OWN_KEYS = {
    "model_type": Key("model_type", help="the family: hugginggreen_vit, kerformer_vit, ..., or any of transformers'"),
    "pretrained": Key("pretrained", None, "a folder or repository whose weights to begin with, instead of model_type"),
    "freeze_backbone": Key("freeze_backbone", False, "train only what stands on the backbone"),
}
# How configs call their numbers of layers, and the bytes that a layer takes even if it has no weights.
LAYERS, LAYER = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "n_attn_blocks", "depths"), 50_000
SEVERAL_CLASSES = "num_labels"  # no field, but every config takes it


def config_class(section: dict) -> type[PreTrainedConfig]:
    if section.get("pretrained"):
        return type(_pretrained_config(section["pretrained"]))
    model_type = section.get("model_type")
    if not model_type:
        raise RunError("model.model_type is missing. Set it, or model.pretrained, to say which model to train.")
    if model_type not in CONFIG_MAPPING:
        raise RunError(f"model.model_type={model_type!r} is unknown; {suggestion(model_type, CONFIG_MAPPING)}")
    return CONFIG_MAPPING[model_type]


def _pretrained_config(source: str) -> PreTrainedConfig:
    try:
        return AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise RunError(f"model.pretrained={source!r} can't be read: {error}") from error


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
        facts: what the data say of it, as num_labels, id2label, image_mean; the section goes before them, except that
            it may not have another number of classes. Those that the config has no field for are left out.
    """
    keys = model_keys(section)
    check_keys("model", section, keys)
    fields = {key: value for key, value in section.items() if key not in OWN_KEYS}
    classes, stated = facts.get("num_labels"), fields.get("num_labels")
    if stated is not None and classes is not None and stated != classes:
        raise RunError(f"model.num_labels={stated}, but the dataset has {classes} classes.")
    if odd := next((key for key, x in fields.items() if isinstance(x, float) and not math.isfinite(x)), None):
        raise RunError(f"model.{odd}={fields[odd]} must be finite.")
    fields = {key: value for key, value in facts.items() if key in keys} | fields
    if "id2label" in fields:
        fields.pop("num_labels", None)  # follows from it
    check_layers(fields)
    try:
        check_num_labels(stated)
        if section.get("pretrained"):
            return AutoConfig.from_pretrained(section["pretrained"], **fields)
        return AutoConfig.for_model(section["model_type"], **fields)
    except (ValueError, TypeError) as error:
        raise RunError(f"model: {error}") from error


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
    with told(where, RunError, UNLOADABLE):
        if section.get("pretrained"):
            stored = _pretrained_config(section["pretrained"])
            other_classes = stored.num_labels != config.num_labels  # then the last layer starts anew
            model = auto_class.from_pretrained(
                section["pretrained"], config=config, ignore_mismatched_sizes=other_classes
            )
        else:
            model = auto_class.from_config(config)
    if section.get("freeze_backbone"):
        if not hasattr(model, "freeze_backbone"):
            raise RunError(f"model.freeze_backbone: {type(model).__name__} has no method freeze_backbone.")
        model.freeze_backbone()
    return model
