"""What can be trained, one file per task: from the YAML of a run to a folder that `from_pretrained` takes.

`task:` of the YAML says which of them it is for, in Hugging Face's words.
"""

from collections.abc import Callable, Sequence

import torch

from ...data.image_sources import UnreadableData
from ...errors import told
from ..configs import find_config
from ..errors import RunError, TrainingError
from ..run import Run
from ..run_file import read_file
from ..trainer import EfficientTrainer
from . import (
    image_classification,
    image_pretraining,
    image_segmentation,
    language_modelling,
    object_detection,
    text_classification,
)

# From the words of a command line to what results.json holds, ...
TASKS: dict[str, Callable[[list[str]], dict]] = {
    image_classification.TASK: image_classification.main,
    object_detection.TASK: object_detection.main,
    image_segmentation.TASK: image_segmentation.main,
    language_modelling.TASK: language_modelling.main,
    text_classification.TASK: text_classification.main,
    image_pretraining.MASKED: image_pretraining.train_masked,
    image_pretraining.CONTRASTIVE: image_pretraining.train_contrastive,
}
# ... or to a trainer that has not begun, and its run.
PREPARATIONS: dict[str, Callable[[list[str]], tuple[EfficientTrainer, Run]]] = {
    image_classification.TASK: image_classification.prepare,
    object_detection.TASK: object_detection.prepare,
    image_segmentation.TASK: image_segmentation.prepare,
    language_modelling.TASK: language_modelling.prepare,
    text_classification.TASK: text_classification.prepare,
    image_pretraining.MASKED: image_pretraining.prepare_masked,
    image_pretraining.CONTRASTIVE: image_pretraining.prepare_contrastive,
}


def train(config: str, overrides: Sequence[str] = (), tasks: Sequence[str] = ()) -> dict:
    """Trains what a run asks for, and returns what its results.json holds.

    Args:
        config: a YAML file, or the name of one that comes with the package.
        overrides: [--key, value, ...]
        tasks: those that are allowed, by default all. If it is only one, the file need not say it.
    """
    file = str(find_config(config))
    main = TASKS[find_task(file, tasks or list(TASKS))]
    try:
        with told("dataset", TrainingError, (UnreadableData,)):  # that no batch had needed until now
            return main([file, *overrides])
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def prepare(config: str, overrides: Sequence[str] = ()) -> tuple[EfficientTrainer, Run]:
    """What would train it; arguments as of `train`."""
    file = str(find_config(config))
    return PREPARATIONS[find_task(file, list(TASKS))]([file, *overrides])


def find_task(file: str, allowed: Sequence[str]) -> str:
    """The task that a YAML file states."""
    task = read_file(file).get("task", allowed[0] if len(allowed) == 1 else None)
    if task is None:
        raise RunError(f"{file} does not say what it trains: add `task:` with one of {', '.join(allowed)}.")
    if task not in TASKS:
        raise RunError(f"{file}: task={task!r} must be one of {', '.join(TASKS)}.")
    if task not in allowed:
        raise RunError(f"{file} is a run of {task}, not of {' or '.join(allowed)}; `hf-efficient train` takes any.")
    return task
