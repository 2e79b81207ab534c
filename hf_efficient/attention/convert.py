"""Swaps the attention of a trained model for another mechanism and says how much that changed.

The model's projections stay the very same modules under the very same names; what the new mechanism learns besides
starts fresh. `distil` (distil.py) then teaches the converted layers what the old ones did.
"""

from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import AutoConfig

from .base import Attention
from .interface import CONVERTED
from .registry import attention_options, build_attention, get_attention, list_attentions
from .sites import Site, cosine, find_cross_attention, find_sites, observe, real_tokens, relative_square, run


@dataclass
class LayerError:
    layer: str
    relative_error: float | None = None  # ‖new − old‖ / ‖old‖ of the layer's output, for the old model's input to it
    cosine: float | None = None


@dataclass
class ConversionReport:
    """What `convert_attention` did; errors are of real tokens, and None where no batch was given."""

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


def convert_attention(model: nn.Module, name: str, batch=None, **options) -> ConversionReport:
    """Replaces every self-attention of a transformers model, or of one of ours, in place.

    In a transformers model the mechanism becomes a part `mechanism` of each attention module, and the model's
    `attn_implementation` is "converted" from then on: `model.set_attn_implementation("sdpa")` is softmax again.
    Projections, rotary positions, grouped keys and the KV cache stay the model's own. Cross-attention stays softmax.

    Args:
        model: changed in place; its projections are kept.
        name: a registered mechanism that works on q, k and v of the sizes at hand.
        batch: keyword arguments for the model (or its single input), on which the errors are measured.
        options: of the mechanism.

    Example:
        >>> report = convert_attention(vit, "performer", batch={"pixel_values": images}, num_features=256)
        >>> print(report)
    """
    sites = find_sites(model)
    if not sites:
        raise ValueError(
            f"{type(model).__name__} has no attention that can be converted: needed is a model of transformers that "
            "knows attn_implementation (BERT, ViT, GPT-2, Llama, ...), or `build_attention` with projections "
            "(KerformerViT, HuggingGreenViT, KerformerText)."
        )
    if not _fits(name):
        fitting = [known for known in list_attentions() if _fits(known)]
        raise ValueError(
            f"'{name}' attention can't take over q, k and v projections. Mechanisms that can: {', '.join(fitting)}."
        )
    for site in sites:
        _refuse_windows(site)
    before = None if batch is None else observe(model, sites, batch)
    mechanisms = [_build(model, site, name, index, options) for index, site in enumerate(sites)]
    for site, mechanism in zip(sites, mechanisms, strict=True):
        _put(model, site, mechanism.train(site.module.training))
    for module in find_cross_attention(model):
        module.mechanism = None  # and stays softmax
    _note(model, sites, name, options)
    report = ConversionReport(name, [LayerError(site.name) for site in sites])
    if before is not None:
        _measure(report, model, *before, batch)
    return report


def _fits(name: str) -> bool:
    cls = get_attention(name)
    return cls.per_head and not cls.needs_grid and cls.key_dim != 0


def _refuse_windows(site: Site) -> None:
    config = getattr(site.module, "config", None)
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if any("sliding" in kind for kind in kinds) if kinds else window is not None:
        raise ValueError(
            f"{site.name} has a sliding window (sliding_window={window}), which other mechanisms don't keep: only "
            "models whose tokens all see each other can be converted. Set sliding_window=None in the config if the "
            "model may do without."
        )


def _build(model: nn.Module, site: Site, name: str, index: int, options: dict) -> Attention:
    """The mechanism for one site, with nothing of its own but what it learns; `_put` brings the projections."""
    old, options = site.module, {"head_dim": site.head_dim, "layer_idx": index, **options}
    if get_attention(name).fixed_length and "max_length" in attention_options(name):
        options.setdefault("max_length", _num_positions(model, site))
    if site.is_ours:
        options = {"dropout": old.dropout, "qk_norm": old.qk_norm, **options}
    width = old.hidden_size if site.is_ours else site.num_heads * site.head_dim
    mechanism = build_attention(name, width, site.num_heads, causal=site.causal, projections=site.is_ours, **options)
    if mechanism.key_dim != site.head_dim:
        raise ValueError(
            f"'{name}' attention with {options} needs keys of {mechanism.key_dim} channels a head: the model's k "
            f"projection gives {site.head_dim}."
        )
    weight = next(old.parameters())
    return mechanism.to(weight.device, weight.dtype)


def _put(model: nn.Module, site: Site, mechanism: Attention) -> None:
    if not site.is_ours:
        site.module.mechanism = mechanism
        return
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "output_dropout", "rotary", "sparsity"]
    names += ["q_norm", "k_norm"] if mechanism.qk_norm and site.module.qk_norm else []
    for name in names:
        setattr(mechanism, name, getattr(site.module, name))
    parent, _, place = site.name.rpartition(".")
    setattr(model.get_submodule(parent), place, mechanism)


def _note(model: nn.Module, sites: list[Site], name: str, options: dict) -> None:
    """Says in the configs what computes attention now."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "attention") and hasattr(config, "attention_options"):
            config.attention, config.attention_options = name, options
        elif hasattr(module, "set_attn_implementation") and not all(site.is_ours for site in sites):
            module.set_attn_implementation(CONVERTED)
            config.converted_attention = {"name": name, **options}
            config.attn_implementation = CONVERTED  # is saved: plain `from_pretrained` is no softmax by accident


def _measure(report: ConversionReport, model: nn.Module, calls: dict, output, batch) -> None:
    real, after = real_tokens(batch), {site.name: site.module for site in find_sites(model)}
    modes = {module: module.training for module in model.modules()}
    model.eval()
    for layer in report.layers:
        call = calls[layer.layer]
        with torch.no_grad():
            new = call.replay(after[layer.layer])
        layer.relative_error = relative_square(call.output, new, real).sqrt().item()
        layer.cosine = cosine(call.output, new, real)
    report.output_error = relative_square(output, run(model, batch), real).sqrt().item()
    for module, mode in modes.items():
        module.training = mode


def _num_positions(model: nn.Module, site: Site) -> int:
    """Tokens the model has positions for."""
    ours, theirs = getattr(model, "config", None), getattr(site.module, "config", None)
    longest = getattr(ours, "num_positions", None) or getattr(theirs, "max_position_embeddings", None)
    if longest is not None:
        return longest
    for name, tensor in model.named_parameters():
        if name.endswith(("position_embeddings", "position_embeddings.weight")):
            return tensor.shape[-2]
    raise ValueError("the model's number of positions is unknown: give max_length.")


def load_converted(model_class: type, path, **kwargs) -> nn.Module:
    """A converted transformers model that `save_pretrained` wrote, with its mechanism; ours need no other way than
    `from_pretrained`. What plain `from_pretrained` brings has no mechanism, and says so when it is called.

    Args:
        model_class: such as BertForSequenceClassification or AutoModelForSequenceClassification.
        path: folder or name on the Hub.
        kwargs: of `from_pretrained`.

    Example:
        >>> model.save_pretrained("my-linear-bert")
        >>> model = load_converted(AutoModelForSequenceClassification, "my-linear-bert")
    """
    config = AutoConfig.from_pretrained(path)
    how = getattr(config, "converted_attention", None)
    if how is None:
        raise ValueError(f"{path} holds no model whose attention was converted: load it by from_pretrained.")
    if hasattr(model_class, "from_config"):
        with torch.device("meta"):
            model_class = type(model_class.from_config(config))

    class Converted(model_class):
        def __init__(self, config, *args, **more):
            super().__init__(config, *args, **more)
            convert_attention(self, **how)

    # transformers finds the names of old checkpoints by the class's name and module.
    Converted.__name__, Converted.__module__ = model_class.__name__, model_class.__module__
    loaded = Converted.from_pretrained(path, **kwargs)
    (loaded[0] if isinstance(loaded, tuple) else loaded).__class__ = model_class
    return loaded
