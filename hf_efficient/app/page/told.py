"""Errors as sentences: what goes wrong in a handler is said on the page, and never as a traceback."""

import functools
import inspect
import logging
from collections.abc import Callable

import gradio as gr

from ...errors import CommandError

UNFORESEEN = "Something went wrong that was not foreseen; the terminal where the page was started says what."
log = logging.getLogger(__name__)


def on_page(handler: Callable) -> Callable:
    """A handler, or a generator of what it shows, whose errors are told in words. They stay until they are closed."""
    if inspect.isgeneratorfunction(handler):

        @functools.wraps(handler)
        def told(*given):
            try:
                yield from handler(*given)
            except Exception as error:
                raise sentence(error) from None

    else:

        @functools.wraps(handler)
        def told(*given):
            try:
                return handler(*given)
            except Exception as error:
                raise sentence(error) from None

    return told


def sentence(error: Exception) -> gr.Error:
    if isinstance(error, gr.Error):
        return error
    if not isinstance(error, CommandError):
        log.error("a handler of the page failed", exc_info=error)
    text = " ".join(str(error).split()) if isinstance(error, CommandError) else UNFORESEEN
    return gr.Error(text, duration=None, title="That did not work", print_exception=False)
