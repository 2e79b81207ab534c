"""Errors that stop a run: `launch.script` prints them as one sentence instead of a traceback."""


class RunError(ValueError):
    """A run that can't begin: a key or value that is wrong, a folder that belongs to another run."""


class TrainingError(RuntimeError):
    """A run that can't go on; its last checkpoint is kept."""


class CheckpointError(TrainingError):
    """A checkpoint that can't be written or read."""


class NonFiniteError(TrainingError):
    """A loss or gradient is NaN or infinite."""
