"""The values of a run: read as YAML, checked and converted to the types that their keys have."""

import inspect
import math
import re
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from .errors import RunError


def convert(value: Any, kind: Any, name: str) -> Any:
    """Converts a value from YAML to its type, or raises a RunError."""
    found = _convert(value, kind)
    if found is NotImplemented:
        raise RunError(f"{name}={value!r} must be {describe(kind)}.")
    return found


def _convert(value: Any, kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(kind)
        for exact in (True, False):  # 1 stays an int where both int and float are allowed
            for option in options:
                found = _convert(value, option)
                if found is not NotImplemented and (not exact or type(found) is type(value)):
                    return found
        return NotImplemented
    if origin is typing.Literal:
        return value if value in typing.get_args(kind) else NotImplemented
    if kind in (None, type(None)):
        return None if value is None else NotImplemented
    if kind is bool:
        return value if isinstance(value, bool) else NotImplemented
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return NotImplemented
        return kind(value) if kind is float or (math.isfinite(value) and value == int(value)) else NotImplemented
    if kind is str:
        return value if isinstance(value, str) else NotImplemented
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return value if value in [member.value for member in kind] or isinstance(value, kind) else NotImplemented
    if inspect.isclass(kind) and issubclass(kind, Path):
        return Path(value) if isinstance(value, str | Path) else NotImplemented
    container = origin or kind
    if container in (list, tuple, dict):
        fits = isinstance(value, dict) if container is dict else isinstance(value, list | tuple)
        return value if fits else NotImplemented
    return value  # some other type: who takes it will check it


def describe(kind: Any) -> str:
    """A type in words."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a mapping"}
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(option) for option in typing.get_args(kind)))
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    if kind in (None, type(None)):
        return "null"
    if (origin or kind) in (list, tuple):
        return "a list"
    return words.get(origin or kind, getattr(kind, "__name__", str(kind)))


MOST_VALUES = 100_000  # in a file


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, `no` is a string (eval_strategy: no), and repeated keys are errors."""


BOOLEAN = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != BOOLEAN]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(BOOLEAN, re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF"))

_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    seen = set()
    for key, _ in node.value:
        key = str(loader.construct_object(key, deep=True))  # a list can't be a key, which YAML itself will say
        if key in seen:
            raise RunError(f"the key {key} appears twice (from line {node.start_mark.line + 1} on).")
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


def expanded_size(value: Any, known: dict[int, int]) -> int:
    """How many values there are, what an alias stands for counted wherever it stands.

    Args:
        known: the sizes of what has been counted, by identity; a hundred aliases can stand for 2**100 values.
    """
    if not isinstance(value, list | dict):
        return 1
    if id(value) not in known:
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(expanded_size(part, known) for part in parts)
    return known[id(value)]


def read_yaml(text: str, source: str) -> Any:
    try:
        found = yaml.load(text, _Loader)
        if expanded_size(found, {}) > MOST_VALUES:
            raise RunError(f"its aliases (*name) stand for more than {MOST_VALUES:,} values.")
        return found
    except RecursionError as error:
        raise RunError(f"{source}: it nests too deep, or holds itself by an alias (*name).") from error
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        line = f", line {place.line + 1}" if place else ""
        raise RunError(f"{source}{line}: {getattr(error, 'problem', None) or error}.") from error
    except RunError as error:
        raise RunError(f"{source}: {error}") from error
