"""The argument parser of the subcommands."""

import argparse
import math
from collections.abc import Callable


class Parser(argparse.ArgumentParser):
    """With the subcommand's docstring as its help; takes --two_words for --two-words, as keys of runs are written."""

    def __init__(self, command: str, description: str):
        super().__init__(
            prog=f"hf-efficient {command}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse_known_args(self, args=None, namespace=None):
        words = [hyphened(word) if word.startswith("--") else word for word in args or []]
        return super().parse_known_args(words, namespace)


def hyphened(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def number(kind: type, least: float, most: float = math.inf) -> Callable[[str], float]:
    """The type of an option: a finite number in this range."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and least <= value <= most):
            what = "a whole number" if kind is int else "a number"
            upper = "" if most == math.inf else f", at most {most:,}"
            raise argparse.ArgumentTypeError(f"{text} must be {what}, at least {least:,}{upper}.")
        return value

    return read


SEED = number(int, 0, 2**32 - 1)
SECONDS = number(float, 0.001)
