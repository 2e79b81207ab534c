"""Calls to the Hub that end: with a result, or with one plain sentence after a stated time.

huggingface_hub sends most requests without a timeout and retries only some. Here a call runs in a thread, under a
deadline that each request obeys, those of the client's own threads included, and is repeated while what went wrong may
pass. No message holds a token.
"""

import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar

import huggingface_hub
from huggingface_hub import constants, errors

from ..errors import CommandError
from .daemon_pool import lend_pools

try:
    import httpx2 as httpx
except ImportError:  # huggingface_hub before 2.0
    import httpx

logger = logging.getLogger(__name__)
T = TypeVar("T")

ATTEMPTS = 5
FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0  # seconds between attempts; each is twice the one before
REQUEST_TIMEOUT = 60.0  # seconds without a byte after which a request has failed; at most a third of what is left
SHORTEST = 0.5  # seconds that any request may take, if there are so many
BASE_TIMEOUT, SLOWEST = 120.0, 2**20  # a call may take 2 minutes, and a second for each MiB that it transfers
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
TOKEN_PAGE = "https://huggingface.co/settings/tokens"
MAY_PASS = {408, 409, 412, 422, 425, 429}  # and whatever is 500 or more


class HubError(CommandError, RuntimeError):
    """What went wrong, in one line that holds no token."""

    def __init__(self, message: str, transient: bool = False, token: str | None = None):
        super().__init__(scrub(" ".join(message.split()), token))
        self.transient = transient  # whether trying again later may help


class Call:
    """Work under a deadline."""

    def __init__(self, what: str, timeout: float | None, token: str | None = None):
        if timeout is not None and not 0 < timeout < math.inf:
            raise HubError(f"{what}: timeout={timeout} must be a number of seconds above 0.")
        self.what, self.token = what, token
        self.problem: HubError | None = None  # the last
        self.asked: dict[int, str] = {}  # by thread, who has not answered yet
        self.fixed = timeout is not None
        self.timeout = BASE_TIMEOUT if timeout is None else timeout
        self.start = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds that requests may still take; the last few percent are for reporting what they met."""
        return self.start + 0.95 * self.timeout - time.monotonic()

    def allow(self, size: int) -> None:
        """More time for so many bytes, unless the caller has said how much there is."""
        if not self.fixed:
            self.timeout = max(self.timeout, BASE_TIMEOUT + size / SLOWEST)

    def spend(self, seconds: float) -> None:
        """So much of the time is over before it begins; a second is left in any case."""
        self.start -= max(0.0, min(seconds, self.timeout - 1.0))

    def run(self, work: Callable[["Call"], T]) -> T:
        """The result of `work(self)`, repeated where that may help; HubError at the latest when time is up."""
        outcome: list = []
        thread = threading.Thread(target=self._run, args=(work, outcome), daemon=True, name=self.what)
        thread.start()
        try:
            while thread.is_alive() and (time_left := self.start + self.timeout - time.monotonic()) > 0:
                thread.join(time_left)
            if not outcome:
                raise self.expired()
        finally:
            self.timeout = 0.0  # whatever still runs sends nothing more
        result, error = outcome
        if error is not None:
            raise error
        return result

    def expired(self) -> HubError:
        problem = self.problem or next((f"no answer from {one}, or not all of it" for one in self.asked.values()), "")
        reason = f"; the last problem: {str(problem).rstrip('.')}" if problem else ""
        more = "--timeout, in training --hub_timeout, allows for more"
        return HubError(f"{self.what}: not done within {self.timeout:.3g} s ({more}){reason}.", True, self.token)

    def _run(self, work: Callable[["Call"], T], outcome: list) -> None:
        _own.set(self)
        try:
            outcome.extend((self._repeat(work), None))
        except BaseException as error:
            outcome.extend((None, error))

    def _repeat(self, work: Callable[["Call"], T]) -> T:
        for attempt in range(1, ATTEMPTS + 1):
            _watch_requests()
            try:
                return work(self)
            except Exception as error:
                if any(isinstance(cause, DeadlinePassed) for cause in _causes(error)):
                    raise self.expired() from None
                problem = self.problem = explain(error, self.token)
            wait = min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT)
            if problem.transient and wait >= self.left:
                raise self.expired()
            if not problem.transient or attempt == ATTEMPTS:
                raise HubError(f"{self.what}: {problem}", problem.transient, self.token)
            logger.warning("%s: %s Trying again in %g s (%d of %d).", self.what, problem, wait, attempt, ATTEMPTS - 1)
            time.sleep(wait)


class DeadlinePassed(Exception):
    """Raised instead of sending a request. No subclass of what the client takes for a reason to use its cache."""


_own: ContextVar[Call | None] = ContextVar("hub_call", default=None)
lend_pools(_own)


def _watch_requests() -> None:
    # The client makes a new session after some errors, so this is asked before every attempt.
    hooks = huggingface_hub.get_session().event_hooks
    if _obey_deadline not in hooks["request"]:
        hooks["request"].append(_obey_deadline)
        hooks["response"].append(_watch_answer)


def _obey_deadline(request) -> None:
    """Limits a request of ours; one of anybody else passes as it is."""
    call = _own.get()
    if call is None:
        return
    if call.left <= 0:
        raise DeadlinePassed
    call.asked[threading.get_ident()] = _origin(request)
    third = max(call.left / 3, min(call.left, SHORTEST))  # so that one that hangs leaves time for another
    most = min(REQUEST_TIMEOUT, third)
    given = request.extensions.get("timeout") or {}
    request.extensions["timeout"] = {
        phase: min(given.get(phase) or most, most) for phase in ("connect", "read", "write", "pool")
    }


def _watch_answer(response) -> None:
    if (call := _own.get()) is not None:
        response.stream = _Answer(response.stream, call)


class _Answer(httpx.SyncByteStream):
    """The bytes of an answer, until time is up: a server may send one every second for ever."""

    def __init__(self, stream: httpx.SyncByteStream, call: Call):
        self.stream, self.call = stream, call

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.stream:
            if self.call.left <= 0:
                raise DeadlinePassed
            yield chunk
        self.call.asked.pop(threading.get_ident(), None)

    def close(self) -> None:
        self.stream.close()


def explain(error: BaseException, token: str | None = None) -> HubError:
    """The same as one sentence that says what to do."""
    for cause in _causes(error):
        if isinstance(cause, HubError):
            return cause
        if known := _explain(cause):
            message, transient = known
            return HubError(message, transient, token)
    text = str(error).strip().split("\n")[0] or type(error).__name__
    return HubError(f"{type(error).__name__}: {text}", _is_damaged_transfer(error), token)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _explain(error: BaseException) -> tuple[str, bool] | None:
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, so the Hub is not asked. Unset it, or give what is in the cache.", False
    if isinstance(error, errors.LocalTokenNotFoundError):
        return no_token(), False
    if isinstance(error, errors.HfHubHTTPError):
        return _explain_answer(error)
    if isinstance(error, httpx.LocalProtocolError):
        return "the request can't be sent; does the token hold a space or a line break?", False
    if isinstance(error, httpx.TimeoutException):
        return f"{_asked(error)} does not answer.", True
    if isinstance(error, httpx.TransportError):
        return f"{_asked(error)} can't be reached ({_first_line(error) or type(error).__name__}).", True
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return f"{constants.ENDPOINT} answered something else than JSON.", True
    if isinstance(error, ValueError):
        return str(error), False
    return None


def _asked(error: httpx.RequestError) -> str:
    """Who: the Hub, or where it keeps large files."""
    try:
        return _origin(error.request)
    except RuntimeError:  # nobody yet
        return constants.ENDPOINT


def _origin(request: httpx.Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc.decode()}"


def _explain_answer(error: errors.HfHubHTTPError) -> tuple[str, bool]:
    status, said = error.response.status_code, _first_line(error.server_message or "")
    if status == 404 and error.response.request.url.path.endswith("/verify"):
        return f"an upload has not arrived whole ({said}).", True
    if isinstance(error, errors.GatedRepoError):
        return f"access has to be asked for on the repository's page first ({said}).", False
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository has no such revision ({said}).", False
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is no such repository, or it is private and your token may not see it.", False
    if status == 401:
        return f"the Hub does not accept your token ({said}). Make one at {TOKEN_PAGE}, then `hf auth login`.", False
    if status == 403:
        return f"your token may not do this ({said}). A token with write access: {TOKEN_PAGE}.", False
    return f"the Hub answered {status} ({said or 'no reason given'}).", status in MAY_PASS or status >= 500


def _is_damaged_transfer(error: BaseException) -> bool:
    """Whether an error that is none of the above is the client's way to say that bytes were lost on the way."""
    return isinstance(error, OSError) and error.errno is None


def _first_line(text) -> str:
    return str(text).strip().split("\n")[0].strip().rstrip(".")


def no_token() -> str:
    return f"there is no token. Make one with write access at {TOKEN_PAGE}, then `hf auth login` or set HF_TOKEN."


def known_tokens(token: str | None = None) -> set[str]:
    """The tokens that must not be seen anywhere: the one given, and those of this machine."""
    found = {token, huggingface_hub.get_token(), *map(os.environ.get, TOKEN_VARIABLES)}
    return {secret.strip() for secret in found if isinstance(secret, str) and secret.strip()}


def scrub(text: str, token: str | None = None) -> str:
    """Without tokens, known ones and whatever looks like one."""
    for secret in known_tokens(token):
        text = text.replace(secret, "<token>")
    return re.sub(r"\bhf_[A-Za-z0-9]{16,}\b", "<token>", text)
