"""Which keys a section of a run has: the parameters of the function, class or dataclass that it is passed to.

Defaults and types come with them. Their help stands in the docstring under `Args:`, or in the metadata of a dataclass
field.
"""

import dataclasses
import difflib
import inspect
import re
import typing
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

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
        return f"use {renamed[key]}."
    close = difflib.get_close_matches(key, list(known), 1, 0.5)
    return f"did you mean {close[0]}?" if close else "--help lists what there is."
