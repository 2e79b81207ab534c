"""One switch for all of `fast`."""

from collections.abc import Iterator
from contextlib import contextmanager

_off: list[None] = []


def is_on() -> bool:
    return not _off


@contextmanager
def switched_off() -> Iterator[None]:
    """Within it, models compute everything the plain way, in this process."""
    _off.append(None)
    try:
        yield
    finally:
        _off.pop()
