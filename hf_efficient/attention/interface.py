"""The bridge: parameter-free mechanisms as `attn_implementation` names of transformers' own models.

    AutoModel.from_pretrained("google/vit-base-patch16-224", attn_implementation="linear_elu")

Each name gets a mask function too. Without one, transformers hands over no mask at all, and padding and causality are
silently lost. A function can own no weights, hence only mechanisms that have none. `convert_attention` makes others a
part `mechanism` of the model's attention modules, and the name CONVERTED finds it there. Decoding keeps the model's
ordinary, growing KV cache.
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Attention
from .registry import attention_options, build_attention, list_attentions, on_register

CONVERTED = "converted"

# The mechanisms that a model's layers use, by layer: none is shared by two, which may be in different modes.
_cores: WeakKeyDictionary[nn.Module, dict[tuple, Attention]] = WeakKeyDictionary()


def bridge(name: str) -> Callable:
    """The mechanism in transformers' calling convention: q, k, v (B, H, N, D) -> output (B, N, H, D), None."""

    def attention_function(
        module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        **kwargs,
    ) -> tuple[Tensor, None]:
        _refuse_bias(module, name, kwargs)
        causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
        core = core_of(module, name, query.shape[1], query.shape[3], causal)
        core.to(query.device).train(module.training)
        return attend_by(core, query, key, value, attention_mask, scaling, dropout), None

    return attention_function


def converted_attention(
    module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """The same by the mechanism that is part of the module; softmax in cross-attention, whose mechanism is None."""
    kind = type(module).__name__
    if not hasattr(module, "mechanism"):
        raise ValueError(
            f"the attention of {kind} was converted, and plain from_pretrained does not bring its mechanism: use "
            "hf_efficient.attention.load_converted, or from_pretrained(..., attn_implementation='sdpa') for softmax."
        )
    core = module.mechanism
    if core is None:
        return bridge("softmax")(module, query, key, value, attention_mask, scaling, dropout, is_causal, **kwargs)
    _refuse_bias(module, core.name, kwargs)
    if is_causal is not None and is_causal != core.causal:
        raise ValueError(
            f"{kind} was converted to '{core.name}' attention with causal={core.causal}, but is called with "
            f"is_causal={is_causal}: a model that says so only then can't be converted."
        )
    for field, heads in {"queries": query, "values": value}.items():
        if heads.shape[3] != core.head_dim:
            raise ValueError(
                f"{kind} has {field} of {heads.shape[3]} channels a head, but '{core.name}' attention was built for "
                f"{core.head_dim}: heads whose queries and values differ can't be converted."
            )
    core.before_forward()
    return attend_by(core, query, key, value, attention_mask, scaling, dropout), None


def attend_by(
    core: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    dropout: float,
) -> Tensor:
    """A mechanism on heads (B, H, N, D) of a transformers model, whose keys may be fewer heads, or more tokens from a
    cache -> (B, N, H, D)"""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # grouped-query attention
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    key, value, mask = _used_keys(key, value, mask, core.name)
    new, total = query.shape[2], key.shape[2]
    if core.causal and new != total:
        query = F.pad(query, (0, 0, total - new, 0))  # cached tokens need no output again
    elif new != total and not core.supports_cross:
        able = list_attentions(parameter_free=True, supports_cross=True)
        raise ValueError(
            f"attn_implementation='{core.name}' needs as many queries as keys, got {new} queries and {total} keys: it "
            f"can't do cross-attention. Those that can: {', '.join(able)}."
        )
    if scaling is not None:  # mechanisms that scale do so by 1/√D
        query = query * (scaling * query.shape[-1] ** 0.5)
    core.dropout = dropout
    return core.attend(query, key, value, key_mask=mask)[:, :, -new:].transpose(1, 2)


def _refuse_bias(module: nn.Module, name: str, kwargs: dict) -> None:
    if kwargs.get("position_bias") is not None:
        raise ValueError(
            f"{type(module).__name__} adds position_bias to its N×N logits, which '{name}' attention would not see: "
            "models with relative position biases (T5) keep their own attention."
        )


def core_of(module: nn.Module, name: str, heads: int, head_dim: int, causal: bool) -> Attention:
    """The mechanism without projections that serves one layer of a model."""
    layer = getattr(module, "layer_idx", None) or 0
    options = {}
    if "max_length" in attention_options(name):
        longest = getattr(getattr(module, "config", None), "max_position_embeddings", None)
        options = {} if longest is None else {"max_length": longest}
    key = (name, heads, head_dim, causal, layer, *options.values())
    own = _cores.setdefault(module, {})
    if key not in own:
        own[key] = build_attention(
            name,
            heads * head_dim,
            heads,
            causal=causal,
            head_dim=head_dim,
            layer_idx=layer,
            projections=False,
            **options,
        )
    return own[key]


def _used_keys(key: Tensor, value: Tensor, mask: Tensor | None, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Without the slots of a static cache that hold no token yet."""
    if mask is None:
        return key, value, None
    if mask.dim() != 2:
        raise ValueError(
            f"attn_implementation='{name}' takes a (batch, tokens) padding mask, got a mask of shape "
            f"{tuple(mask.shape)}: it can't express arbitrary attention patterns."
        )
    used = int(mask.any(0).nonzero().max()) + 1 if mask.any() else mask.shape[1]
    return key[:, :, :used], value[:, :, :used], mask[:, :used]


def padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    attention_mask: Tensor | None = None,
    device: torch.device | None = None,
    **kwargs,
) -> Tensor | None:
    """transformers' mask hook: (B, keys) with True = real token, or None where every key is real."""
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    if mask_function not in (None, causal_mask_function, bidirectional_mask_function):
        raise ValueError(
            "hf_efficient's attention implementations know causal and bidirectional attention with padding; this "
            "model asks for another pattern (sliding window, packed sequences or a custom mask function)."
        )
    causal = mask_function is not bidirectional_mask_function
    seen = min(int(q_offset) + q_length, kv_length) if causal else kv_length
    if attention_mask is None:
        attention_mask = torch.ones(batch_size, seen, dtype=torch.bool, device=device)
    attention_mask = attention_mask[:, -kv_length:].bool()
    attention_mask = F.pad(attention_mask, (0, kv_length - attention_mask.shape[1]), value=False)
    return None if attention_mask.all() else attention_mask


def _register_with_transformers(cls: type[Attention]) -> None:
    if cls.parameter_free:
        _register_functions(cls.name, bridge(cls.name))


def _register_functions(name: str, function: Callable) -> None:
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, padding_mask)


def connect() -> None:
    """Registers every parameter-free mechanism with transformers, those registered later too, and CONVERTED."""
    on_register(_register_with_transformers)
    _register_functions(CONVERTED, converted_attention)
