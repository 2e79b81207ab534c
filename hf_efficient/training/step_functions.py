"""Piecewise constant functions of a run's progress = steps taken / all steps.

{0: 0.4, 0.75: 1.0} is 0.4 up to three quarters of the run, and 1 from there on. Settings that follow one depend on the
step alone, so a resumed run goes on as the one that was killed.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

StepFunction = dict[float, float]


class Values(NamedTuple):
    """What values there may be."""

    must: str
    allows: Callable[[float], bool]


SHARES = Values("lie in (0, 1]", lambda value: 0 < value <= 1)
PROBABILITIES = Values("lie in [0, 1]", lambda value: 0 <= value <= 1)
PIXELS = Values("be a whole number of pixels", lambda value: value >= 1 and value == math.floor(value))
TOKENS = Values("be a whole number of tokens", PIXELS.allows)


def read_step_function(field: str, given: Mapping, values: Values) -> StepFunction:
    """With numbers for keys, where JSON has strings, and in order; raises, and calls it `field`, if it is none."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{field}={given!r} must be a mapping of progress to values, as {{0: 0.4, 0.75: 1.0}}.")
    found = {}
    for key, value in given.items():
        progress, number = to_number(key), to_number(value)
        if not 0 <= progress < 1:
            raise ValueError(
                f"{field}: progress {key!r} must be a number from 0 to below 1, the share of steps taken."
            )
        if not values.allows(number):
            raise ValueError(f"{field}: {value!r}, from {key} on, must {values.must}.")
        found[progress] = number
    if 0 not in found:
        raise ValueError(f"{field}={dict(given)} must say what holds from progress 0 on.")
    return dict(sorted(found.items()))


def to_number(value) -> float:
    """NaN for what is no number."""
    try:
        return math.nan if isinstance(value, bool) or abs(number := float(value)) == math.inf else number
    except (TypeError, ValueError):
        return math.nan


def value_at(function: StepFunction, state) -> float:
    """The value that holds for the next step of a Trainer's state."""
    progress = state.global_step / max(1, state.max_steps)
    return function[max(start for start in function if start <= progress)]
