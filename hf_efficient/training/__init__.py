"""Training: arguments, runs, trainers, callbacks, losses, metrics and checkpoints.

The public names are imported when they are first used: most commands need few of them.
"""

from importlib import import_module

HOMES = {
    "AverageCallback": ".callbacks",
    "BalancedSampler": "..data.balanced_sampler",
    "EfficientTrainer": ".trainer",
    "EfficientTrainingArguments": ".arguments",
    "EnergyCallback": ".energy_callback",
    "EpochCallback": ".callbacks",
    "EpochSampler": ".loop",
    "LanguageModelScores": ".metrics",
    "MovingAverage": ".ema",
    "PatchSelectionCallback": ".patch_schedule",
    "SealCallback": ".callbacks",
    "classification_scores": ".metrics",
    "detection_scores": ".metrics",
    "energy_report": ".energy_callback",
    "muon_with_adamw": ".optimizers",
    "newest_intact": ".checkpoints",
    "read_queries": ".metrics",
}
__all__ = list(HOMES)


def __getattr__(name: str):
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name], __name__), name)
