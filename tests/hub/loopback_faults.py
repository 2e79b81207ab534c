"""Faults that a loopback Hub can be told to commit."""

import re
from dataclasses import dataclass, field

KINDS = {
    # in place of an answer
    "status": "answered with this status",
    "reset": "the connection is reset",
    "hang": "nothing is answered",
    # after the request has been carried out
    "lose_reply": "the connection is reset before the answer",
    "truncate": "only `at` bytes of the upload were stored",
    # in the answer's body
    "cut": "the body ends after `at` bytes",
    "reset_body": "the connection is reset after `at` bytes",
    "stall": "the body stops after `at` bytes; the connection stays open",
    "drip": "after `at` bytes one comes every tenth of a second",
    "garble": "the bytes are no text",
    "flip": "the byte at `at` is another one",
    "ignore_range": "all is sent, whatever part of it was asked for",
}


@dataclass
class Fault:
    """What goes wrong, with which requests, and how often."""

    kind: str
    method: str
    path: str  # a regular expression that is searched for
    times: int = 1
    at: int = 0
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"no fault is called {self.kind!r}; there are {', '.join(KINDS)}.")

    def concerns(self, method: str, path: str) -> bool:
        return self.times > 0 and self.method == method and re.search(self.path, path) is not None
