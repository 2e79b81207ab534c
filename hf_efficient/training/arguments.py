"""One YAML = one run: `load_run` reads it, with what the command line overrides.

    script.py run.yaml [--key value ...]

A bare key goes to the one section that has it, `--section.key value` where two have it, and `--key.inner value` into
a mapping. Values are read as YAML: 1e-3, true, null, [1, 2]. Unknown keys are refused.
"""

import dataclasses
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType

from ..energy import EnergyOptions
from .errors import RunError
from .model_section import build_config, model_keys
from .sections import REQUIRED, Key, check_keys, convert, keys_of, read_yaml, suggestion

LOWER_IS_BETTER = ("loss", "perplexity", "nats_per_token", "bits_per_token", "bits_per_character", "bits_per_byte")
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
# What most runs set, in this order; the other fields of TrainingArguments work too.
USUAL = (
    *("output_dir", "num_train_epochs", "max_steps", "per_device_train_batch_size", "per_device_eval_batch_size"),
    *("gradient_accumulation_steps", "learning_rate", "weight_decay", "warmup_steps", "lr_scheduler_type"),
    *("lr_scheduler_kwargs", "optim", "max_grad_norm", "ema_decay", "early_stopping_patience"),
    *("early_stopping_threshold", "eval_strategy", "eval_steps", "logging_steps", "save_strategy", "save_steps"),
    *("save_total_limit", "metric_for_best_model", "greater_is_better", "load_best_model_at_end", "resume", "seed"),
    *("whole_batches", "dataloader_num_workers", "bf16", "torch_compile", "gradient_checkpointing", "report_to"),
)


@dataclass
class EfficientTrainingArguments(TrainingArguments):
    """transformers' TrainingArguments, with defaults that work on a laptop as they are, and:

    Args:
        output_dir: of checkpoints, results and the trained model; by default results/<name of the run>
        ema_decay: of the moving average of the weights, used for evaluation and saved at the end; 0 = off
        early_stopping_patience: evaluations without a better metric after which training stops; null = never
        early_stopping_threshold: by how much a metric must be better
        whole_batches: leave out, in each epoch, the images that don't fill a batch; with several processes they
            would be filled up with repeated ones
        resume: go on from the newest intact checkpoint in output_dir
        logging_steps: between losses that are logged; below 1 a share of all steps
        save_strategy: by default that of evaluation
        save_steps: by default those of evaluation
        load_best_model_at_end: by default if there is evaluation
        greater_is_better: by default it follows from the metric's name
        use_cpu: by default if there is no GPU
        disable_tqdm: plain lines instead of a progress bar; by default where there is no terminal
    """

    output_dir: str | None = None
    per_device_train_batch_size: int = 32
    per_device_eval_batch_size: int = 64
    eval_strategy: IntervalStrategy | str = "epoch"
    logging_steps: float = 0.02
    logging_nan_inf_filter: bool = False
    save_strategy: SaveStrategy | str | None = None
    save_steps: float | None = None
    save_total_limit: int | None = 2
    load_best_model_at_end: bool | None = None
    restore_callback_states_from_checkpoint: bool = True
    remove_unused_columns: bool = False
    report_to: str | list[str] | None = "none"
    use_cpu: bool | None = None
    disable_tqdm: bool | None = None
    ema_decay: float = field(default=0.0)
    early_stopping_patience: int | None = field(default=None)
    early_stopping_threshold: float = field(default=0.0)
    whole_batches: bool = field(default=True)
    resume: bool = field(default=True)

    def __post_init__(self):
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay={self.ema_decay} must lie in [0, 1); 0.999 is usual, 0 is off.")
        if self.early_stopping_patience is not None and self.early_stopping_patience < 1:
            raise ValueError(f"early_stopping_patience={self.early_stopping_patience} must be at least 1, or null.")
        if self.use_cpu is None:
            self.use_cpu = not torch.accelerator.is_available()
        if self.disable_tqdm is None:
            self.disable_tqdm = not sys.stderr.isatty()
        self.follow_evaluation()
        self.logging_nan_inf_filter = False  # it would hide what training must stop for
        super().__post_init__()
        if self.lr_scheduler_type == SchedulerType.REDUCE_ON_PLATEAU:
            mode = {"mode": "max" if self.greater_is_better else "min"}
            self.lr_scheduler_kwargs = mode | (self.lr_scheduler_kwargs or {})

    def follow_evaluation(self) -> None:
        """Fills in what is usually the same as for evaluation."""
        evaluates = IntervalStrategy(self.eval_strategy) != IntervalStrategy.NO
        if self.save_strategy is None:
            self.save_strategy = IntervalStrategy(self.eval_strategy).value if evaluates else "epoch"
        if self.save_steps is None:
            self.save_steps = self.eval_steps or 500
        if self.load_best_model_at_end is None:
            same = SaveStrategy(self.save_strategy).value == IntervalStrategy(self.eval_strategy).value
            self.load_best_model_at_end = evaluates and (same or self.save_strategy == SaveStrategy.BEST)
        if self.early_stopping_patience is not None and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss"
        if self.greater_is_better is None and self.metric_for_best_model is not None:
            self.greater_is_better = not self.metric_for_best_model.endswith(LOWER_IS_BETTER)

    def __getstate__(self) -> dict:
        """What is pickled, as training_args.bin is, knows no secrets."""
        return {name: None if name.endswith("_token") else value for name, value in self.__dict__.items()}


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
) -> Run:
    """The run that a command line asks for. A `RunError` says what is wrong with it; --help exits.

    Args:
        argv: by default the process's.
        description: of the script, for --help.
        sections: what describes the keys of `dataset`, `augmentation`, `energy` (see `sections.keys_of`); keys of
            a section that nothing describes are not checked. `training` may be a subclass of
            EfficientTrainingArguments.
        defaults: the script's own, per section; YAML and command line go before them.
        task: what is trained; a YAML that says another is refused.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    sections = {"training": EfficientTrainingArguments, "energy": EnergyOptions, **(sections or {})}
    wants_help = [word for word in argv if word in ("-h", "--help")]
    files = [word for word in argv[:1] if not word.startswith("-")]
    if wants_help:
        print(help_text(description, sections, files[0] if files else None, everything="all" in argv))
        raise SystemExit(0)
    if not files:
        raise RunError("which run? The first argument is a YAML file, as in configs/; --help explains.")
    found = read_file(files[0])
    stated = found.get("task", task)
    if task and stated != task:
        raise RunError(f"{files[0]} is a run of {stated}, not of {task}; `hf-efficient train` takes any.")
    given = merge(defaults or {}, found)
    for key, value in pairs(argv[1:]):
        override(given, key, value, sections)
    return dataclasses.replace(make_run(Path(files[0]).stem, given, sections), task=stated)


def read_file(file: str) -> dict:
    """The sections in a YAML file."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{file} can't be read: {getattr(error, 'strerror', None) or error}.") from error
    found = read_yaml(text, file)
    if not isinstance(found, dict):
        raise RunError(f"{file} must hold sections, as `model:` and `training:`.")
    known = [section.name for section in dataclasses.fields(Run) if section.name not in ("name", "given", "command")]
    for name, section in found.items():
        if name not in known:
            raise RunError(f"{file}: there is no section {name!r}; {suggestion(str(name), known)}")
        if name == "task":
            if not isinstance(section, str):
                raise RunError(f"{file}: task must be a word, such as image-classification, got {section!r}.")
        elif name == "dataset" and isinstance(section, str):
            found[name] = {"name": section}
        elif section is None:
            found[name] = {}
        elif not isinstance(section, dict):
            raise RunError(f"{file}: {name} must be a mapping of keys to values, got {section!r}.")
    return found


def merge(first: dict[str, dict], second: dict[str, dict]) -> dict[str, dict]:
    """Sections of both; the second's values go before the first's."""
    names = dict.fromkeys(["dataset", "model", "augmentation", "training", "energy", *first, *second])
    return {name: {**first.get(name, {}), **second.get(name, {})} for name in names if name != "task"}


def pairs(words: Sequence[str]) -> list[tuple[str, Any]]:
    """[--key, value, --key=value] -> [(key, value)]"""
    found, words = [], list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise RunError(f"{word!r} was not expected: overrides are --key value.")
        key, equals, text = word[2:].partition("=")
        if not equals:
            if not words:
                raise RunError(f"--{key} has no value.")
            text = words.pop(0)
        found.append((key.replace("-", "_"), read_yaml(text, f"--{key}")))
    return found


def override(given: dict[str, dict], key: str, value: Any, sections: dict[str, Callable]) -> None:
    """Sets what one `--key value` says."""
    first, *inner = key.split(".")
    if first == "dataset" and not inner:
        given["dataset"]["name"] = value
        return
    if first in given and inner:
        section, first, inner = first, inner[0], inner[1:]
    else:
        section = home_of(first, given, sections)
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
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        place = "" if str(error).startswith(f"{section}.") else f"{section}: "
        raise RunError(f"{place}{error}") from error


def help_text(description: str, sections: dict[str, Callable], file: str | None, everything: bool = False) -> str:
    """What --help prints; after a YAML file also the fields of its model."""
    given = merge({}, read_file(file) if file else {})
    lines = [description.strip(), "", textwrap.dedent(__doc__.partition("\n\n")[2]).strip(), ""]
    for section in given:
        if section == "model" and not file:
            lines += ["model:", "    the fields of its config; `run.yaml --help` lists them", ""]
            continue
        keys = keys_in(section, given, sections)
        if not keys:
            continue
        lines.append(f"{section}:")
        shown = [keys[name] for name in USUAL if name in keys] if section == "training" and not everything else []
        own = [key for key in keys.values() if section == "training" and key.name not in TRANSFORMERS_FIELDS]
        shown += [key for key in own if key not in shown] if shown else keys.values()
        lines += [line for key in shown for line in key_lines(key, given[section].get(key.name, key.default))]
        if section == "training" and not everything:
            lines.append(f"    ... and {len(keys) - len(shown)} more of transformers.TrainingArguments: --help all")
        lines.append("")
    return "\n".join(lines)


TRANSFORMERS_FIELDS = {known.name for known in dataclasses.fields(TrainingArguments)}


def key_lines(key: Key, value: Any) -> list[str]:
    """One key of --help: its name, what it is now, what it means."""
    shown = "" if value is REQUIRED else f" = {'null' if value is None else getattr(value, 'value', value)}"
    width = max(60, shutil.get_terminal_size((119, 24)).columns)
    head = f"    {key.name}{shown}"
    if not key.help:
        return [head]
    if len(head) < 44 and len(head) + len(key.help) < width + 2 and "\n" not in head:
        return [f"{head:<44}  {key.help}"] if 46 + len(key.help) <= width else [head, f"        {key.help}"]
    return [head, *textwrap.wrap(key.help, width, initial_indent=" " * 8, subsequent_indent=" " * 8)]
