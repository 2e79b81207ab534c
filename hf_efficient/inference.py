"""What a model says of images or texts: transformers' `pipeline()` for the task that its config names."""

from collections.abc import Sequence
from pathlib import Path

from transformers import AutoConfig, pipeline, set_seed
from transformers.configuration_utils import PreTrainedConfig

import hf_efficient  # noqa: F401  registers our models

from . import zoo
from .data.images import open_rgb
from .errors import ANYTHING, UNLOADABLE, CommandError, told

# How the names of a task's classes end.
ENDINGS = {
    "image-classification": ("ForImageClassification",),
    "object-detection": ("ForObjectDetection",),
    "image-segmentation": ("ForSemanticSegmentation",),
    "text-generation": ("ForCausalLM", "LMHeadModel"),
    "text-classification": ("ForSequenceClassification", "ForSequencePairClassification"),
}
OF_TEXTS = ("text-generation", "text-classification")


def locate(model: str) -> str:
    """A folder or repository as it is; of a name in the zoo its folder."""
    return zoo.path(model) if model in zoo.list() and not Path(model).exists() else model


def read_config(model: str, trust_remote_code: bool = False) -> PreTrainedConfig:
    """The config of a model in a folder or on the Hub."""
    with told(f"{model} can't be read as a model", causes=ANYTHING):
        return AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)


def architectures_of(model: str, trust_remote_code: bool = False) -> list[str]:
    """The classes that a model was saved from."""
    return read_config(model, trust_remote_code).architectures or []


def task_of(model: str, trust_remote_code: bool = False) -> str:
    """What a model was made for."""
    architectures = architectures_of(model, trust_remote_code)
    for task, endings in ENDINGS.items():
        if any(name.endswith(endings) for name in architectures):
            return task
    held = ", ".join(architectures) or "no known architecture"
    raise CommandError(f"{model} holds {held}: give --task, one of {', '.join(ENDINGS)}.")


def predict(
    model: str,
    inputs: Sequence[str],
    *,
    task: str | None = None,
    top_k: int = 5,
    threshold: float = 0.5,
    max_new_tokens: int = 100,
    temperature: float = 0.8,
    seed: int = 0,
    trust_remote_code: bool = False,
) -> list[dict]:
    """One record per input: {"input", "task", "predictions"}, what the pipeline of the task returns.

    Args:
        model: a folder, a repository on the Hub, or a name in the zoo.
        inputs: image files, or texts to classify or to go on from.
        task: by default what the model was made for.
        top_k: labels per image or text, of a classifier.
        threshold: score from which on a box of a detector counts.
        max_new_tokens, temperature, seed: of a language model's continuation; temperature 0 takes the likeliest token.
    """
    model = locate(model)
    task, architectures = task or task_of(model, trust_remote_code), architectures_of(model, trust_remote_code)
    if task == "text-generation":
        set_seed(seed)
        sampling = {"do_sample": True, "temperature": temperature} if temperature > 0 else {"do_sample": False}
        options = {"max_new_tokens": max_new_tokens, "return_full_text": False, **sampling}
    elif task == "text-classification":
        if any(name.endswith("ForSequencePairClassification") for name in architectures):
            raise CommandError(f"{model} classifies pairs of texts, which pipelines can't: see docs/texts.md.")
        options = {"top_k": top_k}
    else:
        for name in inputs:
            if not Path(name).is_file() and "://" not in name:
                raise CommandError(f"there is no image {name}.")
        known = {"image-classification": {"top_k": top_k}, "object-detection": {"threshold": threshold}}
        options = known.get(task, {})

    def read(name: str):
        """A file as training reads it; a pipeline would drop transparency and clip 16 bits."""
        return name if task in OF_TEXTS or "://" in name else open_rgb(name)

    with told(model, causes=UNLOADABLE):
        answer = pipeline(task, model=model, trust_remote_code=trust_remote_code)
    found = []
    for given in inputs:
        with told("the text" if task in OF_TEXTS else given):
            found.append({"input": given, "task": task, "predictions": answer(read(given), **options)})
    return found
