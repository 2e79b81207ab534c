"""Mechanisms that are known by name, flags and options, but not by code.

A repository on the Hub holds the code of the one mechanism that its checkpoint uses (`remote_code.py`). Its configs
know the others all the same, so that they are checked as everywhere.
"""

import inspect

from .base import FLAGS, Attention
from .registry import attention_options, register_attention


def declare_attention(name: str, options: dict, *, weights: bool = True, absorb: bool = True, **flags: bool) -> None:
    """Registers a mechanism that can be asked about, but not built. `options` are those beyond the common ones;
    `weights` and `absorb` say whether it has these methods."""

    def missing(self, *args, **kwargs):
        raise ImportError(
            f"the code of '{name}' attention is not in this repository, which holds what its own checkpoint uses: "
            "install hf_efficient, and register the mechanism if it is not one of hf_efficient's."
        )

    def __init__(self, *args, **kwargs):
        missing(self)

    kind = inspect.Parameter
    own = [kind(option, kind.KEYWORD_ONLY, default=default) for option, default in options.items()]
    __init__.__signature__ = inspect.Signature([*own, kind("common", kind.VAR_KEYWORD)])
    methods = {"__init__": __init__, "absorb": missing if absorb else None}
    if weights:
        methods["weights"] = missing
    register_attention(name)(type(name, (Attention,), {**flags, **methods, "__module__": __name__}))


def describe_attention(cls: type[Attention]) -> str:
    """The call of `declare_attention` that stands for a mechanism."""
    common = inspect.signature(Attention.__init__).parameters
    options = {
        option: default
        for option, default in attention_options(cls.name).items()
        if option not in common or default != common[option].default
    }
    told = {flag: getattr(cls, flag) for flag in FLAGS if getattr(cls, flag) != getattr(Attention, flag)}
    if not cls.has_weights():
        told["weights"] = False
    if cls.absorb is None:
        told["absorb"] = False
    return f"declare_attention({', '.join([repr(cls.name), repr(options), *(f'{k}={v}' for k, v in told.items())])})"
