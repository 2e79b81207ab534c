"""The registry: mechanisms by name. `@register_attention` enters a class; `build_attention` makes a module of it."""

import inspect
import re
from collections.abc import Callable

from .base import FLAGS, Attention

_MECHANISMS: dict[str, type[Attention]] = {}
_LISTENERS: list[Callable[[type[Attention]], None]] = []


def register_attention(target=None):
    """Class decorator: `@register_attention`, or `@register_attention("name")` where the name is not the class's."""

    def register(cls: type[Attention], name: str | None = None) -> type[Attention]:
        name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if not (isinstance(cls, type) and issubclass(cls, Attention)):
            raise TypeError(f"register_attention decorates subclasses of Attention, got {cls!r}.")
        known = _MECHANISMS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"attention '{name}' is already registered by {known.__module__}.{known.__qualname__}.")
        cls.name = name
        _MECHANISMS[name] = cls
        for listener in _LISTENERS:
            listener(cls)
        return cls

    if isinstance(target, str):
        return lambda cls: register(cls, target)
    return register(target) if target is not None else register


def on_register(listener: Callable[[type[Attention]], None]) -> None:
    """Calls `listener` with every registered mechanism, and with every one registered later."""
    _LISTENERS.append(listener)
    for cls in list(_MECHANISMS.values()):
        listener(cls)


def list_attentions(**filters: bool) -> list[str]:
    """Names of all registered mechanisms, or of those that answer as asked.

    Example:
        >>> list_attentions(supports_causal=True, supports_recurrent=True)
    """
    for question in filters:
        if question not in (*FLAGS, "has_weights"):
            raise ValueError(f"unknown filter {question!r}; mechanisms have {', '.join(FLAGS)}, has_weights.")
    return sorted(name for name, cls in _MECHANISMS.items() if all(_says(cls, *asked) for asked in filters.items()))


def _says(cls: type[Attention], question: str, wanted: bool) -> bool:
    answer = getattr(cls, question)
    return (answer() if callable(answer) else answer) == wanted


def get_attention(name: str) -> type[Attention]:
    """The class registered under a name."""
    if name not in _MECHANISMS:
        raise ValueError(f"unknown attention {name!r}; known: {', '.join(list_attentions())}.")
    return _MECHANISMS[name]


def is_linear(cost: str) -> bool:
    """Whether a cost such as "2ND² + NR" grows no faster than the number of tokens N."""
    return not any(faster in cost for faster in ("N²", "log N", "R+C"))  # rows and columns: √N


def attention_options(name: str) -> dict[str, object]:
    """The options of a mechanism with their defaults: what `build_attention` takes beyond sizes and `causal`."""
    options = {}
    for cls in get_attention(name).__mro__:
        if "__init__" not in vars(cls):
            continue
        signature = inspect.signature(cls.__init__).parameters.values()
        for p in signature:
            if p.kind is p.KEYWORD_ONLY:
                options.setdefault(p.name, p.default)
        if not any(p.kind is p.VAR_KEYWORD for p in signature):
            break
    options.pop("causal")
    return options


def build_attention(name: str, hidden_size: int, num_heads: int, causal: bool = False, **options) -> Attention:
    """Builds a mechanism by name.

    Example:
        >>> attention = build_attention("performer", hidden_size=512, num_heads=8, causal=True, num_features=256)
        >>> attention(hidden_states).hidden_states
    """
    cls, valid = get_attention(name), attention_options(name)
    for option in options:
        if option not in valid:
            raise ValueError(f"unknown option {option!r} of '{name}' attention; valid: {', '.join(sorted(valid))}.")
    return cls(hidden_size, num_heads, causal=causal, **options)
