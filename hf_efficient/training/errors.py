"""Errors that stop a run: commands print them as one sentence instead of a traceback."""

from ..errors import CommandError


class RunError(CommandError, ValueError):
    """A run that can't begin: a key or value that is wrong, a folder that belongs to another run."""


class TrainingError(CommandError, RuntimeError):
    """A run that can't go on; its last checkpoint is kept."""


class CheckpointError(TrainingError):
    """A checkpoint that can't be written or read."""


class NonFiniteError(TrainingError):
    """A loss or gradient is NaN or infinite."""
