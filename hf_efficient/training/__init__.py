"""Training: arguments, runs, trainers, callbacks, losses, metrics and checkpoints.

The public names are imported when they are first used: most commands need few of them.
"""

from importlib import import_module

HOMES = {
    "EfficientTrainer": "trainer",
    "EfficientTrainingArguments": "arguments",
    "EnergyCallback": "energy_callback",
    "PatchSelectionCallback": "patch_schedule",
}
__all__ = list(HOMES)


def __getattr__(name: str):
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{HOMES[name]}", __name__), name)
