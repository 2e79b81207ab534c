"""The models that the page shows, loaded once for all visitors."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import Pipeline, pipeline
from transformers.utils.logging import disable_progress_bar

import hf_efficient  # noqa: F401  registers our models

from .. import zoo
from ..errors import UNLOADABLE, CommandError, told
from ..inference import locate, task_of

OF_IMAGES = ("image-classification", "object-detection", "image-segmentation")
OF_TEXT = ("text-generation",)


@dataclass(frozen=True)
class Shown:
    """A model under the name that visitors choose it by."""

    name: str
    task: str
    pipe: Pipeline

    @property
    def model(self):
        return self.pipe.model

    @property
    def config(self):
        return self.pipe.model.config


def load(names: Sequence[str], with_zoo: bool = True) -> dict[str, Shown]:
    """Models by name, those that are named first."""
    wanted = [*names, *(name for name in zoo.list() if with_zoo and name not in names)]
    if not wanted:
        raise CommandError("there is no model to show: name a folder, a repository on the Hub or a name in the zoo.")
    disable_progress_bar()  # of loading weights
    shown = {}
    for given in wanted:
        name = free_name(given, shown)
        shown[name] = load_one(name, given)
    return shown


def load_one(name: str, given: str) -> Shown:
    folder = locate(given)
    task = task_of(folder)
    if task not in (*OF_IMAGES, *OF_TEXT):
        raise CommandError(f"{given} is for {task}; the page shows models for {', '.join((*OF_IMAGES, *OF_TEXT))}.")
    with told(given, causes=UNLOADABLE):
        pipe = pipeline(task, model=folder)
    pipe.model.eval()
    return Shown(name, task, pipe)


def free_name(given: str, taken: dict) -> str:
    """A folder's last part, since paths are nobody's business; what is taken gets a number."""
    name = Path(given).resolve().name if Path(given).exists() else given
    number, free = 2, name
    while free in taken:
        number, free = number + 1, f"{name} ({number})"
    return free


def for_tasks(shown: dict[str, Shown], tasks: Sequence[str]) -> list[str]:
    return [name for name, model in shown.items() if model.task in tasks]
