"""What --help of a run prints: each section with its keys, their values and what they mean."""

import dataclasses
import shutil
import textwrap
from typing import Any

from transformers import TrainingArguments

from .run_keys import REQUIRED, Key

USAGE = """script.py run.yaml [--key value ...]

A bare key goes to the one section that has it, `--section.key value` where two have it, and `--key.inner value` into
a mapping. Values are read as YAML: 1e-3, true, null, [1, 2]; `--key` alone means true. Unknown keys are refused."""
# What most runs set, in this order; the other fields of TrainingArguments work too.
USUAL = (
    *("output_dir", "budget", "num_train_epochs", "max_steps", "per_device_train_batch_size"),
    *("per_device_eval_batch_size", "gradient_accumulation_steps", "learning_rate", "weight_decay", "warmup_steps"),
    *(
        "lr_scheduler_type",
        "decay_share",
        "lr_scheduler_kwargs",
        "optim",
        "max_grad_norm",
        "ema_decay",
        "early_stopping_patience",
    ),
    *("early_stopping_threshold", "eval_strategy", "eval_steps", "logging_steps", "save_strategy", "save_steps"),
    *("save_total_limit", "metric_for_best_model", "greater_is_better", "load_best_model_at_end", "resume", "seed"),
    *("whole_batches", "dataloader_num_workers", "bf16", "torch_compile", "gradient_checkpointing", "verbose"),
    "report_to",
)


def help_text(
    description: str, given: dict[str, dict], keys: dict[str, dict[str, Key]], everything: bool = False
) -> str:
    """
    Args:
        description: of the script.
        given: the sections with the values that they have now.
        keys: section -> its keys; without `model` no run was named, and which fields it has is not known yet.
        everything: also the fields of TrainingArguments that few runs set.
    """
    lines = [description.strip(), "", USAGE, ""]
    for section, values in given.items():
        if section == "model" and section not in keys:
            lines += ["model:", "    the fields of its config; `run.yaml --help` lists them", ""]
            continue
        known = list(keys[section].values())
        shown = usual_keys(keys[section]) if section == "training" and not everything else known
        if not known:
            continue
        lines.append(f"{section}:")
        lines += [line for key in shown for line in key_lines(key, values.get(key.name, key.default))]
        if len(shown) < len(known):
            lines.append(f"    ... and {len(known) - len(shown)} more of transformers.TrainingArguments: --help all")
        lines.append("")
    return "\n".join(lines)


def usual_keys(keys: dict[str, Key]) -> list[Key]:
    """What most runs set, and what transformers' TrainingArguments do not have."""
    theirs = {field.name for field in dataclasses.fields(TrainingArguments)}
    own = [name for name in keys if name not in theirs]
    return [keys[name] for name in dict.fromkeys([*USUAL, *own]) if name in keys]


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
