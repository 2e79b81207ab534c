"""The contract of every attention mechanism, and the registry.

A mechanism is one file with one class:

    @register_attention
    class MyMechanism(Attention):            # registered as "my_mechanism"
        supports_causal = True
        def __init__(self, hidden_size, num_heads, *, my_option=1.0, **common): ...
        def attend(self, q, k, v, key_mask=None, position_ids=None): ...       # fast, (B, H, N, D)
        def weights(self, q, k, key_mask=None, position_ids=None, rows=None): ...  # the formula, (B, H, S, N)

Capability flags say what it can do; a request for anything else is a `ValueError` when the module is built. `naive`
states the formula literally in O(N²) and is what the tests hold the fast form to.
"""

import inspect
import re
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

State = dict[str, Tensor]

_MECHANISMS: dict[str, type["Attention"]] = {}
_LISTENERS: list[Callable[[type["Attention"]], None]] = []


class AttentionOutput(NamedTuple):
    hidden_states: Tensor  # (B, N, d)
    weights: Tensor | None = None  # (B, H, N, N), with output_attentions
    state: State | None = None  # after the last token, with state
    sparsity: Tensor | None = None  # scalar, with `sparsity` attached


class Attention(nn.Module):
    """Multi-head attention with projections; subclasses say how q, k and v (B, H, N, D) become the heads' output.

    Args:
        hidden_size: width d of the tokens.
        num_heads: H.
        head_dim: D, by default d / H; H·D need not equal d.
        causal: token i sees tokens j ≤ i only.
        bias: of the q, k and v projections (`output_bias`: of the output projection).
        dropout: on attention weights; linear mechanisms, which have none, drop whole keys. Training only.
        output_dropout: after the output projection.
        layer_idx: seeds what a mechanism draws at random, so that layers differ and ranks agree.
        projections: False builds the bare mechanism, for callers that bring q, k and v.
    """

    name: ClassVar[str]
    supports_causal: ClassVar[bool] = False
    supports_recurrent: ClassVar[bool] = False  # with a state whose size does not depend on the tokens seen
    supports_key_mask: ClassVar[bool] = True
    supports_weights: ClassVar[bool] = True  # has an N×N matrix to show
    mask_invariant: ClassVar[bool] = True  # padding leaves the real tokens' outputs as they are
    stochastic_rows: ClassVar[bool] = True  # the rows of that matrix are non-negative and sum to 1
    uses_positions: ClassVar[bool] = False  # otherwise permuting the tokens permutes the outputs
    needs_grid: ClassVar[bool] = False  # tokens are the cells of an image, row by row
    fixed_length: ClassVar[bool] = False  # owns tables of `max_length` positions
    per_head: ClassVar[bool] = True  # works on q, k, v; otherwise on hidden states
    parameter_free: ClassVar[bool] = False  # learns nothing beyond q, k, v, o: becomes an `attn_implementation` name
    shared_qk: ClassVar[bool] = False  # its keys are its queries
    can_absorb: ClassVar[bool] = True  # its state can take keys and values whose queries are not known
    paper: ClassVar[str] = ""
    cost: ClassVar[str] = ""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        causal: bool = False,
        bias: bool = True,
        output_bias: bool = True,
        dropout: float = 0.0,
        output_dropout: float = 0.0,
        layer_idx: int = 0,
        projections: bool = True,
    ):
        super().__init__()
        check_positive("hidden_size", hidden_size)
        check_positive("num_heads", num_heads)
        if head_dim is None and hidden_size % num_heads:
            raise ValueError(
                f"hidden_size={hidden_size} does not divide by num_heads={num_heads}: "
                "choose a divisor, or give head_dim explicitly."
            )
        check_positive("head_dim", hidden_size // num_heads if head_dim is None else head_dim)
        for field, value in (("dropout", dropout), ("output_dropout", output_dropout)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise ValueError(f"{field}={value!r} must lie in [0, 1).")
        switches = {"causal": causal, "bias": bias, "output_bias": output_bias, "projections": projections}
        for field, value in switches.items():
            check_choice(field, value, (False, True))
        if isinstance(layer_idx, bool) or not isinstance(layer_idx, int) or layer_idx < 0:
            raise ValueError(f"layer_idx={layer_idx!r} must be 0 or a positive integer.")
        self.hidden_size, self.num_heads, self.head_dim = hidden_size, num_heads, head_dim or hidden_size // num_heads
        self.causal, self.dropout, self.layer_idx = causal, dropout, layer_idx
        if causal and not self.supports_causal:
            self.refuse("causal=True", "supports_causal")
        self.sparsity = None  # a callable on sampled rows of the weights: hf_efficient.layers.sparsity
        self.output_dropout = nn.Dropout(output_dropout)
        if projections:
            self.build_projections(bias, output_bias)

    def build_projections(self, bias: bool, output_bias: bool) -> None:
        inner = self.num_heads * self.head_dim
        self.q_proj = linear(self.hidden_size, inner, bias)
        self.k_proj = linear(self.hidden_size, inner, bias)
        self.v_proj = linear(self.hidden_size, inner, bias)
        self.o_proj = linear(inner, self.hidden_size, output_bias)

    # What a mechanism implements.

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask=None, position_ids=None) -> Tensor:
        """q, k, v (B, H, N, D) -> (B, H, N, D)"""
        raise NotImplementedError

    def weights(self, q: Tensor, k: Tensor, key_mask=None, position_ids=None, rows=None) -> Tensor:
        """The matrix A of o = A v, literally: (B, H, N, N), or only the query rows `rows` (S,) of it."""
        raise NotImplementedError

    def naive(self, q: Tensor, k: Tensor, v: Tensor, key_mask=None, position_ids=None) -> Tensor:
        """The formula, O(N²): the slow obvious form beside `attend`."""
        return self.weights(q, k, key_mask=key_mask, position_ids=position_ids) @ zero_masked(v, key_mask)

    def initial_state(self, batch_size: int, device=None, dtype=torch.float32) -> State:
        """The state before the first token: tensors with the batch dimension first."""
        self.refuse("a state", "supports_causal")

    def extend(self, q: Tensor, k: Tensor, v: Tensor, state: State, key_mask=None) -> tuple[Tensor, State]:
        """Like `attend`, for tokens that follow those in `state`."""
        self.refuse("a state", "supports_causal")

    def absorb(self, k: Tensor, v: Tensor, state: State, key_mask=None) -> State:
        """The state after tokens that are only looked at, k, v (B, H, N, D): a memory."""
        return self.extend(k[..., : self.head_dim], k, v, state, key_mask=key_mask)[1]

    def cross(self, q: Tensor, k: Tensor, v: Tensor, key_mask=None) -> Tensor:
        """Every query (B, H, N, D) against every key (B, H, M, D), whatever their order: (B, H, N, D)."""
        state = self.initial_state(q.shape[0], q.device, torch.promote_types(q.dtype, torch.float32))
        state = self.absorb(k, v, state, key_mask)
        nobody = torch.zeros(q.shape[0], q.shape[2], device=q.device, dtype=torch.bool)
        blank = q.new_zeros(*q.shape[:3], k.shape[-1]), q.new_zeros(*q.shape[:3], v.shape[-1])
        return self.extend(q, *blank, state, key_mask=nobody)[0]

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        """One token, q, k, v (B, H, D) or (B, H, 1, D). Without gradients the state may be updated in place."""
        if q.dim() == 4:
            return self.extend(q, k, v, state)
        output, state = self.extend(q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2), state)
        return output.squeeze(2), state

    def step_stacked(self, qk: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        """`step` for q and k as they come out of one projection: (2, B, H, 1, D)."""
        return self.step(*qk, v, state)

    def before_forward(self) -> None:
        """What a mechanism does once per forward pass before anything else, such as counting them."""

    # What all mechanisms share.

    def forward(
        self,
        hidden_states: Tensor,
        key_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        state: State | None = None,
        output_attentions: bool = False,
    ) -> AttentionOutput:
        """hidden_states (B, N, d) -> (B, N, d); key_mask (B, N), True = real token; position_ids (B, N) or (N,)."""
        self.before_forward()
        position_ids = self.check_inputs(hidden_states, key_mask, position_ids, grid, state, output_attentions)
        q, k, v = self.project(hidden_states)
        where = {"key_mask": key_mask, "position_ids": position_ids, **({"grid": grid} if self.needs_grid else {})}
        weights = sparsity = None
        if output_attentions:
            weights = self.weights(q, k, **where)
            dropped = nn.functional.dropout(weights, self.dropout, self.training)
            output = dropped @ zero_masked(v, key_mask)
        elif state is None:
            output = self.attend(q, k, v, **where)
        elif q.shape[2] == 1 and key_mask is None:
            output, state = self.step(q, k, v, state)
        else:
            output, state = self.extend(q, k, v, state, key_mask=key_mask)
        if self.sparsity is not None and self.training:
            sparsity = self.sparsity(self, q, k, **where)
        return AttentionOutput(self.merge_heads(output), weights, state, sparsity)

    def reference(self, hidden_states: Tensor, key_mask=None, position_ids=None, grid=None) -> Tensor:
        """`forward` by way of `naive`: (B, N, d) -> (B, N, d)."""
        position_ids = self.check_inputs(hidden_states, key_mask, position_ids, grid)
        where = {"key_mask": key_mask, "position_ids": position_ids, **({"grid": grid} if self.needs_grid else {})}
        if not self.per_head:
            return self.naive(hidden_states, **where)
        return self.merge_heads(self.naive(*self.project(hidden_states), **where))

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, d) -> q, k, v (B, H, N, D)"""
        shape = (*hidden_states.shape[:2], self.num_heads, self.head_dim)
        return tuple(p(hidden_states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))

    @property
    def key_width(self) -> int:
        """Channels of all heads' keys together; 0 where its keys are its queries."""
        return 0 if self.shared_qk else self.num_heads * self.head_dim

    def merge_heads(self, heads: Tensor) -> Tensor:
        """(B, H, N, D) -> (B, N, d)"""
        return self.output_dropout(self.o_proj(heads.transpose(1, 2).flatten(2)))

    def resampled(
        self, old_grid: tuple[int, int], new_grid: tuple[int, int], num_prefix_tokens: int = 1
    ) -> dict[str, Tensor]:
        """Tables of positions for images of another size, by parameter name, differentiable; {} where there are none.
        `num_prefix_tokens` (CLS) come before the cells of the grid."""
        return {}

    @torch.no_grad()
    def resample(self, old_grid: tuple[int, int], new_grid: tuple[int, int], num_prefix_tokens: int = 1) -> None:
        """Adapts the tables to images of another size for good."""
        for name, table in self.resampled(old_grid, new_grid, num_prefix_tokens).items():
            self.get_parameter(name).data = table

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """What the mechanism learns beyond the projections."""
        projections = ("q_proj.", "k_proj.", "v_proj.", "o_proj.")
        return {name: p for name, p in self.named_parameters() if not name.startswith(projections)}

    def refuse(self, request: str, flag: str, reason: str = "") -> None:
        able = ", ".join(name for name in list_attentions() if getattr(_MECHANISMS[name], flag))
        raise ValueError(f"'{self.name}' attention does not support {request}{reason}. Mechanisms that do: {able}.")

    def check_inputs(
        self, hidden_states, key_mask=None, position_ids=None, grid=None, state=None, output_attentions=False
    ) -> Tensor | None:
        """Raises for what can't be computed; returns position_ids as (B, N)."""
        if hidden_states.dim() != 3 or hidden_states.shape[2] != self.hidden_size:
            raise ValueError(
                f"hidden_states must be (batch, tokens, {self.hidden_size}), got {tuple(hidden_states.shape)}."
            )
        batch, length = hidden_states.shape[:2]
        if batch == 0 or length == 0:
            raise ValueError(f"hidden_states {tuple(hidden_states.shape)} is empty: at least one token is needed.")
        if key_mask is not None:
            if not self.supports_key_mask:
                self.refuse("key_mask", "supports_key_mask")
            if key_mask.dtype != torch.bool:
                raise ValueError(f"key_mask must be boolean, True = real token, got {key_mask.dtype}.")
            if key_mask.shape != (batch, length):
                raise ValueError(f"key_mask must be (batch, tokens) = {(batch, length)}, got {tuple(key_mask.shape)}.")
        if self.needs_grid:
            if grid is None:
                raise ValueError(f"'{self.name}' attention needs grid=(rows, columns) of the {length} tokens.")
            if grid[0] * grid[1] != length:
                raise ValueError(f"grid={tuple(grid)} has {grid[0] * grid[1]} cells, but there are {length} tokens.")
        if state is not None:
            if not self.causal:
                raise ValueError(f"state needs causal=True; this '{self.name}' attention was built bidirectional.")
            rows = next(iter(state.values())).shape[0]
            if rows != batch:
                raise ValueError(f"state holds {rows} rows, but hidden_states has {batch}.")
        if output_attentions:
            if not self.supports_weights:
                self.refuse("output_attentions", "supports_weights")
            if state is not None:
                raise ValueError("output_attentions shows one whole sequence: it can't be combined with state.")
        if position_ids is not None:
            if position_ids.is_floating_point() or position_ids.dtype == torch.bool:
                raise ValueError(f"position_ids must be integers, got {position_ids.dtype}.")
            rows = position_ids.shape[0] if position_ids.dim() == 2 else 1
            if position_ids.dim() not in (1, 2) or position_ids.shape[-1] != length or rows not in (batch, 1):
                raise ValueError(f"position_ids must be {(batch, length)}, got {tuple(position_ids.shape)}.")
            position_ids = position_ids.expand(batch, length)
        return position_ids

    def extra_repr(self) -> str:
        return f"hidden_size={self.hidden_size}, num_heads={self.num_heads}, causal={self.causal}"


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


def list_attentions() -> list[str]:
    """Names of all registered mechanisms."""
    return sorted(_MECHANISMS)


def get_attention(name: str) -> type[Attention]:
    """The class registered under a name."""
    if name not in _MECHANISMS:
        raise ValueError(f"unknown attention {name!r}; known: {', '.join(list_attentions())}.")
    return _MECHANISMS[name]


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


# Parts that mechanisms share.


def linear(in_features: int, out_features: int, bias: bool = True) -> nn.Linear:
    """A projection, initialised as Hugging Face's ViT does: truncated normal 0.02, zero bias."""
    layer = nn.Linear(in_features, out_features, bias=bias)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def check_positive(field: str, value) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{field}={value!r} must be a positive integer.")


def check_choice(field: str, value, choices: tuple) -> None:
    if value not in choices:
        raise ValueError(f"{field}={value!r} must be one of {', '.join(map(repr, choices))}.")


def zero_masked(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """x (B, H, N, D) with zeros at masked tokens, whatever stood there."""
    return x if key_mask is None else x.masked_fill(~key_mask[:, None, :, None], 0)


def allowed_keys(
    length: int, causal: bool, key_mask: Tensor | None, rows: Tensor | None = None, device=None
) -> Tensor | None:
    """Which key each query row sees: bool, broadcastable to (B, H, S, N); None = all."""
    allowed = None
    if causal:
        i = torch.arange(length, device=device) if rows is None else rows
        allowed = (torch.arange(length, device=device) <= i[:, None])[None, None]  # (1, 1, S, N)
    if key_mask is not None:
        keys = key_mask[:, None, None, :]
        allowed = keys if allowed is None else allowed & keys
    return allowed


def masked_softmax(logits: Tensor, allowed: Tensor | None, dim: int = -1) -> Tensor:
    """Softmax over what is allowed; a row that sees nothing is 0, not NaN."""
    if allowed is None:
        return logits.softmax(dim)
    return logits.masked_fill(~allowed, -torch.inf).softmax(dim).masked_fill(~allowed, 0)


def squared_distance(q: Tensor, k: Tensor) -> Tensor:
    """‖q_i − k_j‖², (..., N, D) x (..., M, D) -> (..., N, M)"""
    return q.square().sum(-1, keepdim=True) - 2 * q @ k.mT + k.square().sum(-1).unsqueeze(-2)


def token_positions(position_ids: Tensor | None, key_mask: Tensor | None, batch: int, length: int, device) -> Tensor:
    """(B, N): as given, else counted over real tokens, so that padding on either side changes no position."""
    if position_ids is not None:
        return position_ids
    if key_mask is not None:
        return (key_mask.long().cumsum(-1) - 1).clamp_min(0)
    return torch.arange(length, device=device).expand(batch, length)
