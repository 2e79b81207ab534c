"""Swaps the attention of a trained model for another mechanism and says how much that changed.

The q, k, v and o projections stay the very same modules; what the new mechanism learns besides starts fresh. Meant
for a look at how well a mechanism approximates a model, and as a start for fine-tuning.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .base import Attention
from .registry import attention_options, build_attention, get_attention, list_attentions


@dataclass
class LayerError:
    layer: str
    relative_error: float | None = None  # ‖new − old‖ / ‖old‖ of the layer's output, for the old model's input to it
    cosine: float | None = None


@dataclass
class ConversionReport:
    """What `convert_attention` did; errors are None where no batch was given."""

    attention: str
    layers: list[LayerError] = field(default_factory=list)
    output_error: float | None = None  # the same of the model's first output, all layers converted

    def __str__(self) -> str:
        width = max(len(layer.layer) for layer in self.layers)
        lines = [f"{'layer':<{width}}  relative error  cosine"]
        for layer in self.layers:
            numbers = "" if layer.relative_error is None else f"{layer.relative_error:14.4f}  {layer.cosine:6.3f}"
            lines.append(f"{layer.layer:<{width}}  {numbers}".rstrip())
        if self.output_error is not None:
            lines.append(f"{'model output':<{width}}  {self.output_error:14.4f}")
        return "\n".join(lines)


class _Site(NamedTuple):
    """A place in the model where attention is computed."""

    name: str
    module: nn.Module
    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Module  # Identity where the model projects elsewhere
    num_heads: int
    causal: bool
    dropout: float


class ConvertedAttention(nn.Module):
    """A mechanism behind the signature of transformers' ViT and BERT attention."""

    def __init__(self, attention: Attention):
        super().__init__()
        self.attention = attention

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs) -> tuple[Tensor, None]:
        if kwargs.get("past_key_values") is not None:
            raise ValueError(f"converted '{self.attention.name}' attention has no KV cache: pass use_cache=False.")
        if kwargs.get("encoder_hidden_states") is not None:
            raise ValueError(f"converted '{self.attention.name}' attention is self-attention only.")
        return self.attention(hidden_states, key_mask=_key_mask(attention_mask)).hidden_states, None


def convert_attention(model: nn.Module, name: str, batch=None, **options) -> ConversionReport:
    """Replaces every self-attention of a transformers ViT or BERT, or of one of our models, in place.

    Args:
        model: changed in place; its projections are kept.
        name: a registered mechanism that works on q, k and v of the sizes at hand.
        batch: keyword arguments for the model (or its single input), on which the errors are measured.
        options: of the mechanism.

    Example:
        >>> report = convert_attention(vit, "performer", batch={"pixel_values": images}, num_features=256)
        >>> print(report)
    """
    sites = list(_sites(model))
    if not sites:
        raise ValueError(
            f"{type(model).__name__} has no attention that can be converted: a transformers ViT or BERT, or a model "
            "of hf_efficient is needed. Models with rotary positions take parameter-free mechanisms as "
            "attn_implementation."
        )
    fitting = [known for known in list_attentions() if _fits(known)]
    if not _fits(name):
        raise ValueError(
            f"'{name}' attention can't take over q, k and v projections. Mechanisms that can: {', '.join(fitting)}."
        )
    was_training = model.training
    before = None if batch is None else _observe(model.eval(), sites, batch)
    converted = [_convert(model, site, name, index, options) for index, site in enumerate(sites)]
    for site, module in zip(sites, converted, strict=True):
        _replace(model, site.name, module)
    config = getattr(model, "config", None)
    if hasattr(config, "attention") and hasattr(config, "attention_options"):
        config.attention, config.attention_options = name, options

    report = ConversionReport(name, [LayerError(site.name) for site in sites])
    if before is not None:
        calls, output = before
        for layer, module in zip(report.layers, converted, strict=True):
            args, kwargs, old = calls[layer.layer]
            with torch.no_grad():
                new = module.eval()(*args, **kwargs)[0]
            layer.relative_error, layer.cosine = _difference(old, new)
        report.output_error, _ = _difference(output, _run(model.eval(), batch))
    model.train(was_training)
    return report


def _fits(name: str) -> bool:
    cls = get_attention(name)
    return cls.per_head and not cls.needs_grid and cls.key_dim != 0


def _sites(model: nn.Module) -> Iterator[_Site]:
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            if module.per_head and module.key_dim:
                q, k, v, o = module.q_proj, module.k_proj, module.v_proj, module.o_proj
                yield _Site(name, module, q, k, v, o, module.num_heads, module.causal, module.dropout)
            continue
        accepts = inspect.signature(module.forward).parameters
        if "position_embeddings" in accepts or "encoder_hidden_states" in accepts:  # rotary, or cross-attention
            continue
        heads, causal = getattr(module, "num_attention_heads", 0), getattr(module, "is_causal", False)
        if _has_linears(module, "q_proj", "k_proj", "v_proj", "o_proj"):
            dropout = float(getattr(module, "attention_dropout", 0.0))
            yield _Site(
                name, module, module.q_proj, module.k_proj, module.v_proj, module.o_proj, heads, causal, dropout
            )
        elif _has_linears(module, "query", "key", "value"):
            dropout = module.dropout.p if isinstance(getattr(module, "dropout", None), nn.Dropout) else 0.0
            yield _Site(name, module, module.query, module.key, module.value, nn.Identity(), heads, causal, dropout)


def _has_linears(module: nn.Module, *names: str) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Linear) for name in names)


def _convert(model: nn.Module, site: _Site, name: str, index: int, options: dict) -> nn.Module:
    inner = site.q.out_features
    options = {"head_dim": inner // site.num_heads, "layer_idx": index, "dropout": site.dropout, **options}
    keeps_norms = isinstance(site.module, Attention) and site.module.qk_norm and options.setdefault("qk_norm", True)
    if get_attention(name).fixed_length and "max_length" in attention_options(name):
        options.setdefault("max_length", _num_positions(model))
    attention = build_attention(name, site.q.in_features, site.num_heads, causal=site.causal, **options)
    if attention.k_proj.weight.shape != site.k.weight.shape:
        raise ValueError(
            f"'{name}' attention with {options} needs a k projection of {tuple(attention.k_proj.weight.shape)}, "
            f"the model has {tuple(site.k.weight.shape)}."
        )
    attention.to(site.q.weight.device, site.q.weight.dtype)
    attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj = site.q, site.k, site.v, site.o
    if keeps_norms:
        attention.q_norm, attention.k_norm = site.module.q_norm, site.module.k_norm
    return attention if isinstance(site.module, Attention) else ConvertedAttention(attention)


def _num_positions(model: nn.Module) -> int:
    """Tokens the model has positions for."""
    for name, tensor in model.named_parameters():
        if name.endswith(("position_embeddings", "position_embeddings.weight")):
            return tensor.shape[-2]
    raise ValueError("the model's number of positions is unknown: give max_length.")


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def _run(model: nn.Module, batch) -> Tensor:
    with torch.no_grad():
        return (model(**batch) if isinstance(batch, Mapping) else model(batch))[0]


def _observe(model: nn.Module, sites: list[_Site], batch) -> tuple[dict, Tensor]:
    """What goes into and comes out of every site, and the model's output."""
    calls, hooks = {}, []
    for site in sites:

        def remember(module, args, kwargs, output, name=site.name):
            calls[name] = args, kwargs, output[0]

        hooks.append(site.module.register_forward_hook(remember, with_kwargs=True))
    try:
        output = _run(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return calls, output


def _difference(old: Tensor, new: Tensor) -> tuple[float, float]:
    old, new = old.float().flatten(), new.float().flatten()
    return ((new - old).norm() / old.norm()).item(), torch.cosine_similarity(old, new, 0).item()


def _key_mask(attention_mask: Tensor | None) -> Tensor | None:
    """transformers' 4-D mask, boolean or additive -> (B, N), True = real: the last query sees every real key."""
    if attention_mask is None or attention_mask.dim() == 2:
        return None if attention_mask is None else attention_mask.bool()
    last = attention_mask[:, 0, -1]
    return last if last.dtype == torch.bool else last > torch.finfo(last.dtype).min / 2
