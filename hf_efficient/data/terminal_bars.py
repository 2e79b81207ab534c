"""Progress bars of `datasets` only where there is a terminal: in a log file they would be a mess."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bars_on_terminals() -> Iterator[None]:
    from datasets import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    were_shown = not are_progress_bars_disabled()
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        yield
    finally:
        if were_shown:
            enable_progress_bars()
