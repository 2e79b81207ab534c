"""The claims of the papers, one file each: `hf-efficient claims`."""

from importlib import import_module

from ..repetitions import ExperimentError
from .base import Claim

NAMES = (
    "probabilistic_attention",
    "patch_selection",
    "training_stages",
    "sparsity_and_routing",
    "linear_cost",
    "converted_encoder",
    "long_range_arena",
    "text_speed",
    "kerformer_vit",
    "separable_attention",
    "compressive_performer",
)


def claim(name: str) -> Claim:
    if name not in NAMES:
        raise ExperimentError(f"there is no claim {name!r}; there are {', '.join(NAMES)}.")
    return import_module(f".{name}", __name__).CLAIM


def claims() -> list[Claim]:
    return [claim(name) for name in NAMES]
