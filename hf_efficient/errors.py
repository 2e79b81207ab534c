"""What a command tells in one line instead of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

# What libraries raise for files and values that are not as they should be.
BAD_INPUT = (OSError, ValueError, SafetensorError)

UNLOADABLE = (*BAD_INPUT, RuntimeError)  # the last is transformers' for weights that don't fit


ANYTHING = (Exception,)  # transformers' own configs and models take any value, and fail wherever they use it


class CommandError(Exception):
    """What went wrong, in words for whoever started the command."""


@contextmanager
def told(
    where: str, kind: type[CommandError] = CommandError, causes: tuple[type[Exception], ...] = BAD_INPUT
) -> Iterator[None]:
    """What bad input raises inside becomes an error of this kind: one line that begins with `where`."""
    try:
        yield
    except CommandError:
        raise
    except causes as error:
        reason = " ".join(str(error).split())
        if not reason or isinstance(error, LookupError):  # whose text is the key alone
            reason = f"{type(error).__name__} {reason}".strip()
        raise kind(reason if reason.startswith(where) else f"{where}: {reason}") from error
