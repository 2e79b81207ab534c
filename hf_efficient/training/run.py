"""One YAML = one run: `load_run` reads it, with what the command line overrides; `run_help.USAGE` says how."""

import dataclasses
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..energy import EnergyOptions
from ..errors import ANYTHING, told
from .arguments import EfficientTrainingArguments
from .build_model import build_config, model_keys
from .errors import RunError
from .run_file import SECTIONS, displaced, read_file
from .run_help import help_text
from .run_keys import REQUIRED, Key, check_keys, keys_of, suggestion
from .run_values import convert, read_yaml

# What transformers 4 called them.
RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "warmup_ratio": "warmup_steps, which below 1 is a share of all steps",
    "no_cuda": "use_cpu",
    "batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
    "lr": "learning_rate",
    "group_by_length": "train_sampling_strategy: group_by_length",
    "overwrite_output_dir": "another output_dir: a run goes on where its folder stands",
}
NO_VALUE = object()  # of `--flag`, which means true where true or false is asked for


@dataclass
class Run:
    """
    Args:
        name: of the run: that of its YAML file.
        dataset, model, augmentation, energy: sections as they were given; their keys are known to be right.
        training: the section `training`, complete.
        given: all sections as they were given, what the command line overrides included, secrets left out.
        command: that started it.
        task: what is trained, in Hugging Face's words.
    """

    name: str
    dataset: dict
    model: dict
    training: EfficientTrainingArguments
    augmentation: dict = field(default_factory=dict)
    energy: dict = field(default_factory=dict)
    given: dict = field(default_factory=dict)
    command: str = ""
    task: str = ""


def load_run(
    argv: Sequence[str] | None = None,
    description: str = "",
    sections: dict[str, Callable] | None = None,
    defaults: dict[str, dict] | None = None,
    task: str = "",
    metrics: Sequence[str] = (),
) -> Run:
    """The run that a command line asks for. A `RunError` says what is wrong with it; --help exits.

    Args:
        argv: by default the process's.
        description: of the script, for --help.
        sections: what describes the keys of `dataset`, `augmentation`, `energy` (see `run_keys.keys_of`); keys of
            a section that nothing describes are not checked. `training` may be a subclass of
            EfficientTrainingArguments.
        defaults: the script's own, per section; YAML and command line go before them.
        task: what is trained; a YAML that says another is refused.
        metrics: what an evaluation finds, beside the loss.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    sections = {"training": EfficientTrainingArguments, "energy": EnergyOptions, **(sections or {})}
    files = [word for word in argv[:1] if not word.startswith("-")]
    if "-h" in argv or "--help" in argv:
        given = merge({}, read_file(files[0]) if files else {})
        keys = {name: keys_in(name, given, sections) for name in given if name != "model" or files}
        print(help_text(description, given, keys, everything="all" in argv))
        raise SystemExit(0)
    if not files:
        raise RunError("no run is given: the first argument must be a YAML file, as those in configs/. See --help.")
    found = read_file(files[0])
    stated = found.get("task", task)
    if task and stated != task:
        raise RunError(f"{files[0]} is a run of {stated}, not of {task}; `hf-efficient train` takes any.")
    given = merge(defaults or {}, found)
    for key, value in pairs(argv[1:]):
        override(given, key, value, sections)
    run = make_run(Path(files[0]).stem, given, sections)
    known, chosen = ("loss", *metrics), run.training.metric_for_best_model
    if task and chosen is not None and chosen.removeprefix("eval_") not in known:
        raise RunError(f"training.metric_for_best_model={chosen!r} must be one of {', '.join(known)}.")
    return dataclasses.replace(run, task=stated)


def merge(first: dict[str, dict], second: dict[str, dict]) -> dict[str, dict]:
    """Sections of both; the second's values go before the first's."""
    names = dict.fromkeys([*SECTIONS, *first, *second])
    return {name: {**first.get(name, {}), **second.get(name, {})} for name in names if name != "task"}


def pairs(words: Sequence[str]) -> list[tuple[str, Any]]:
    """[--key, value, --key=value, --flag] -> [(key, value), (key, value), (flag, NO_VALUE)]"""
    found, words = [], list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise RunError(f"unexpected argument {word!r}: write --key value.")
        key, equals, text = word[2:].partition("=")
        if not equals:
            text = words.pop(0) if words and not words[0].startswith("--") else None
        found.append((key.replace("-", "_"), NO_VALUE if text is None else read_yaml(text, f"--{key}")))
    return found


def override(given: dict[str, dict], key: str, value: Any, sections: dict[str, Callable]) -> None:
    """Sets what one `--key value` says."""
    first, *inner = key.split(".")
    if first == "dataset" and not inner:
        section, first = "dataset", "name"
    elif first in given and inner:
        section, first, inner = first, inner[0], inner[1:]
    else:
        section = home_of(first, given, sections)
    if value is NO_VALUE:
        known = keys_in(section, given, sections).get(first)
        if inner or known is None or not (known.type is bool or isinstance(known.default, bool)):
            raise RunError(f"--{key} has no value.")
        value = True
    if section == "training":
        for other in displaced({first: value}):
            given[section].pop(other, None)
    if not inner:
        given[section][first] = value
        return
    place = given[section].get(first)
    place = given[section][first] = dict(place) if isinstance(place, dict) else {}
    for name in inner[:-1]:
        place = place.setdefault(name, {})
    place[inner[-1]] = value


def home_of(key: str, given: dict[str, dict], sections: dict[str, Callable]) -> str:
    """The one section that has a key."""
    known = {name: keys_in(name, given, sections) for name in given}
    homes = [name for name, keys in known.items() if key in keys]
    if len(homes) > 1:
        raise RunError(f"--{key} is a key of {' and '.join(homes)}: write --{homes[0]}.{key} or --{homes[1]}.{key}.")
    if not homes:
        every = dict.fromkeys(name for keys in known.values() for name in keys)
        raise RunError(f"--{key} is unknown; {suggestion(key, every, RENAMED)}")
    return homes[0]


def keys_in(section: str, given: dict[str, dict], sections: dict[str, Callable]) -> dict[str, Key]:
    if section == "model":
        return model_keys(given["model"])
    if section in sections:
        return keys_of(sections[section])
    return {key: Key(key) for key in given[section]}


def make_run(name: str, given: dict[str, dict], sections: dict[str, Callable]) -> Run:
    """Checks every section and completes `training`."""
    for section, values in given.items():
        keys = keys_in(section, given, sections)
        check_keys(section, values, keys, RENAMED if section == "training" else None)
        if section != "model":  # whose config does it
            given[section] = {key: convert(value, keys[key].type, f"{section}.{key}") for key, value in values.items()}
        missing = [key.name for key in keys.values() if key.default is REQUIRED and key.name not in values]
        if section == "dataset" and missing and section in sections:
            raise RunError(f"dataset.{missing[0]} is missing.")
        if section != "training" and dataclasses.is_dataclass(sections.get(section)):  # which checks its values
            construct(section, sections[section], given[section])
    build_config(given["model"])
    name = given["training"].get("run_name") or name
    training = {"output_dir": str(Path("results") / name), **given["training"]}
    arguments = construct("training", sections["training"], training)
    return Run(
        name=name,
        **{section: values for section, values in given.items() if section != "training"},
        training=arguments,
        given={
            section: {key: value for key, value in values.items() if not key.endswith("_token")}
            for section, values in given.items()
        },
        command=re.sub(r"(--\S*token[= ])\S+", r"\1(secret)", " ".join(command_words())),
    )


def command_words() -> list[str]:
    """The command of this process, as a person would type it."""
    program, *words = sys.argv
    own = Path(program).stem in ("hf-efficient", "__main__")  # `python -m hf_efficient` is the latter
    return ["hf-efficient", *words] if own else ["python", program, *words]


def construct(section: str, cls: type, values: dict) -> Any:
    with told(section, RunError, ANYTHING):
        return cls(**values)
