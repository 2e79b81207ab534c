"""Where a model computes attention: a module of ours, or one of transformers' that asks for `attn_implementation`.

Almost every model of transformers hands its heads' q, k and v to a function that it looks up by name. So a mechanism
takes over there, behind joint or grouped projections and rotary positions, whatever they are.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .base import Attention

CROSS = ("encoder_attn", "EncDecAttention")  # names of cross-attention whose class does not say so


class Site(NamedTuple):
    """A place in a model where attention is computed."""

    name: str
    module: nn.Module
    num_heads: int
    head_dim: int
    causal: bool

    @property
    def is_ours(self) -> bool:
        return isinstance(self.module, Attention)

    @property
    def mechanism(self) -> Attention | None:
        """What computes attention here; None in a transformers model that was not converted."""
        return self.module if self.is_ours else getattr(self.module, "mechanism", None)


class Call(NamedTuple):
    """What went into a site, and what came out."""

    inputs: dict
    output: Tensor  # (B, N, d)

    def replay(self, module: nn.Module) -> Tensor:
        return module(**self.inputs)[0]


def find_sites(model: nn.Module) -> list[Site]:
    """Every self-attention of the model, by name."""
    sites = []
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            if module.per_head and module.key_dim and hasattr(module, "q_proj"):
                sites.append(Site(name, module, module.num_heads, module.head_dim, module.causal))
        elif _asks_for_implementation(module) and not _looks_elsewhere(name, module):
            config = module.config
            heads = _attribute(module, "num_heads", "num_attention_heads", "n_heads") or config.num_attention_heads
            head_dim = _attribute(module, "head_dim", "attention_head_size") or config.hidden_size // heads
            sites.append(Site(name, module, heads, head_dim, bool(getattr(module, "is_causal", False))))
    return sites


def find_cross_attention(model: nn.Module) -> list[nn.Module]:
    """Every attention of a transformers model that looks at another sequence."""
    return [m for name, m in model.named_modules() if _asks_for_implementation(m) and _looks_elsewhere(name, m)]


def _asks_for_implementation(module: nn.Module) -> bool:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names and hasattr(module, "config")


def _looks_elsewhere(name: str, module: nn.Module) -> bool:
    """Whether it is cross-attention."""
    place = name.rpartition(".")[2]
    return getattr(module, "is_cross_attention", False) or place in CROSS or "Cross" in type(module).__name__


def _attribute(module: nn.Module, *names: str) -> int | None:
    return next((value for name in names if isinstance(value := getattr(module, name, None), int)), None)


def run(model: nn.Module, batch) -> Tensor:
    """The model's first output."""
    with torch.no_grad():
        return (model(**batch) if isinstance(batch, Mapping) else model(batch))[0]


def observe(model: nn.Module, sites: Iterable[Site], batch) -> tuple[dict[str, Call], Tensor]:
    """What goes into and comes out of every site, and the model's output, in evaluation mode."""
    calls, hooks, modes = {}, [], {module: module.training for module in model.modules()}
    for site in sites:

        def remember(module, args, kwargs, output, name=site.name):
            calls[name] = Call(_inputs(module, args, kwargs), output[0])

        hooks.append(site.module.register_forward_hook(remember, with_kwargs=True))
    try:
        output = run(model.eval(), batch)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    return calls, output


def _inputs(module: nn.Module, args: tuple, kwargs: dict) -> dict:
    """The arguments of a call by name, as any implementation takes them, and without the cache, which would grow."""
    inputs = {**dict(zip(inspect.signature(module.forward).parameters, args, strict=False)), **kwargs}
    if "past_key_values" in inputs:
        inputs["past_key_values"] = None
    if "attention_mask" in inputs:
        inputs["attention_mask"] = key_mask(inputs["attention_mask"])
    return inputs


def key_mask(attention_mask: Tensor | None) -> Tensor | None:
    """transformers' 4-D mask, boolean or additive -> (B, N), True = real: the last query sees every real key."""
    if attention_mask is None or attention_mask.dim() == 2:
        return None if attention_mask is None else attention_mask.bool()
    last = attention_mask[:, 0, -1]
    return last if last.dtype == torch.bool else last > torch.finfo(last.dtype).min / 2


def real_tokens(batch) -> Tensor | None:
    """(B, N), True = no padding, as the batch says."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    return None if mask is None or mask.dim() != 2 else mask.bool()


def relative_square(old: Tensor, new: Tensor, real: Tensor | None) -> Tensor:
    """‖new − old‖² / ‖old‖² over real tokens; old, new (B, N, d)"""
    old, new = _only_real(old, real), _only_real(new, real)
    return (new - old).square().sum() / old.square().sum().clamp_min(torch.finfo(torch.float32).tiny)


def cosine(old: Tensor, new: Tensor, real: Tensor | None) -> float:
    old, new = _only_real(old, real), _only_real(new, real)
    return torch.cosine_similarity(old.flatten(), new.flatten(), 0).item()


def _only_real(x: Tensor, real: Tensor | None) -> Tensor:
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x if real is None or real.shape != x.shape[:2] else x[real]
