"""The sections of a run, each described by what it is passed to: a function, class or dataclass.

Its parameters are the section's keys, with their defaults and types, and their help stands in its docstring under
`Args:`, or in a dataclass field's metadata.
"""

import dataclasses
import difflib
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from .errors import RunError

REQUIRED = inspect.Parameter.empty


class Key(NamedTuple):
    """What is known of one key."""

    name: str
    default: Any = REQUIRED
    help: str = ""
    type: Any = Any


def keys_of(described_by: Callable) -> dict[str, Key]:
    """The keys of a section, in order."""
    types_of = _type_hints(described_by)
    explained = explanations(described_by)
    if dataclasses.is_dataclass(described_by):
        found = {}
        for field in dataclasses.fields(described_by):
            if field.init and not field.name.startswith("_"):
                text = explained.get(field.name) or inherited_help(described_by, field.name)
                found[field.name] = Key(field.name, _default(field), text, types_of.get(field.name, Any))
        return found
    return {
        name: Key(name, parameter.default, explained.get(name, ""), types_of.get(name, Any))
        for name, parameter in inspect.signature(described_by).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def _type_hints(described_by: Callable) -> dict[str, Any]:
    target = described_by
    if inspect.isclass(described_by) and not dataclasses.is_dataclass(described_by):
        target = described_by.__init__
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError):  # a type of a library that isn't installed: what it is can't be checked
        return {}


def _default(field: dataclasses.Field) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return REQUIRED if field.default_factory is dataclasses.MISSING else field.default_factory()


def explanations(described_by: Callable) -> dict[str, str]:
    """`name: text` and `name, other: text` under "Args:" in the docstrings of a class and of those above it."""
    found = {}
    for source in reversed(inspect.getmro(described_by)) if inspect.isclass(described_by) else (described_by,):
        own = vars(source).get("__doc__") if inspect.isclass(source) else source.__doc__
        text = inspect.cleandoc(own or "")
        _, _, arguments = text.partition("Args:\n")
        block = re.split(r"\n\S", arguments, maxsplit=1)[0]
        for names, help in re.findall(r"^    ([\w, ]+): (.+(?:\n {8}.*)*)", block, flags=re.M):
            for name in names.split(","):
                found[name.strip()] = re.sub(r"\s+", " ", help)
    return found


def inherited_help(cls: type, name: str) -> str:
    """From the metadata of the field, there or where it is inherited from."""
    fields = (vars(base).get("__dataclass_fields__", {}).get(name) for base in inspect.getmro(cls))
    text = next((field.metadata["help"] for field in fields if field is not None and "help" in field.metadata), "")
    return re.split(r"(?<=[.])\s", re.sub(r"\s+", " ", text).replace("%%", "%"), maxsplit=1)[0]


def check_keys(section: str, given: dict, known: Iterable[str], renamed: dict[str, str] | None = None) -> None:
    """Refuses keys that a section does not have."""
    known = list(known)
    for key in given:
        if key not in known:
            raise RunError(f"{section}.{key} is unknown; {suggestion(key, known, renamed)}")


def suggestion(key: str, known: Iterable[str], renamed: dict[str, str] | None = None) -> str:
    if renamed and key in renamed:
        return f"today it is {renamed[key]}."
    close = difflib.get_close_matches(key, list(known), 1, 0.5)
    return f"did you mean {close[0]}?" if close else "--help lists what there is."


def convert(value: Any, kind: Any, name: str) -> Any:
    """The value as its type, from what YAML makes of it; what can't be that type is refused."""
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


class _Loader(yaml.SafeLoader):
    """YAML where 1e-3 is a number, `no` is a word, as in eval_strategy: no, and a key stands once."""


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
    keys = [loader.construct_object(key) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise RunError(f"{key} stands there twice (line {node.start_mark.line + 1} and on).")
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


def read_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        line = f", line {place.line + 1}" if place else ""
        raise RunError(f"{source}{line}: {getattr(error, 'problem', None) or error}.") from error
    except RunError as error:
        raise RunError(f"{source}: {error}") from error
