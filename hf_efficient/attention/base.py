"""The contract of every attention mechanism.

A mechanism is one file with one class:

    @register_attention
    class MyMechanism(Attention):            # registered as "my_mechanism"
        supports_causal = True
        def __init__(self, hidden_size, num_heads, *, my_option=1.0, **common): ...
        def attend(self, q, k, v, key_mask=None, position_ids=None): ...       # fast, (B, H, N, D)
        def weights(self, q, k, key_mask=None, position_ids=None, rows=None): ...  # the formula, (B, H, S, N)

Flags say what it can do; a request for anything else is a `ValueError` when the module is built. `naive` states the
formula literally in O(N²) and is what the tests hold the fast form to. Causal mechanisms have a state, too:
`initial_state`, `extend`, `step`, `absorb`.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..linear.state import State
from .masking import zero_masked


class AttentionOutput(NamedTuple):
    hidden_states: Tensor  # (B, N, d)
    weights: Tensor | None = None  # (B, H, N, N), or (B, H, N, M) with context; with output_attentions
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
        qk_norm: RMSNorm of each head's queries and keys after their projection, with a learned gain for each channel
            (Henry et al. 2020; Dehghani et al. 2023), so that logits can't grow with the weights.
    """

    name: ClassVar[str]
    supports_causal: ClassVar[bool] = False
    supports_recurrent: ClassVar[bool] = False  # with a state whose size does not depend on the tokens seen
    supports_key_mask: ClassVar[bool] = True
    supports_cross: ClassVar[bool] = False  # bidirectional, keys and values may come from another sequence
    needs_grid: ClassVar[bool] = False  # tokens are the cells of an image, row by row
    fixed_length: ClassVar[bool] = False  # owns tables of `max_length` positions
    per_head: ClassVar[bool] = True  # works on q, k, v; otherwise on hidden states
    parameter_free: ClassVar[bool] = False  # learns nothing beyond q, k, v, o: becomes an `attn_implementation` name
    key_dim: ClassVar[int | None] = None  # channels of one head's key: `head_dim`, or 0 if its keys are its queries
    exempt_from: ClassVar[tuple[str, ...]] = ()  # the LAWS that it does not obey
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
        qk_norm: bool = False,
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
        for field, value in {**switches, "qk_norm": qk_norm}.items():
            check_choice(field, value, (False, True))
        if isinstance(layer_idx, bool) or not isinstance(layer_idx, int) or layer_idx < 0:
            raise ValueError(f"layer_idx={layer_idx!r} must be 0 or a positive integer.")
        self.hidden_size, self.num_heads, self.head_dim = hidden_size, num_heads, head_dim or hidden_size // num_heads
        self.key_dim = self.head_dim if self.key_dim is None else self.key_dim
        self.causal, self.dropout, self.layer_idx = causal, dropout, layer_idx
        if causal and not self.supports_causal:
            self.refuse("causal=True", "supports_causal")
        self.rotary = None  # turns queries and keys by their positions: hf_efficient.layers.rotary
        self.sparsity = None  # a callable on sampled rows of the weights: hf_efficient.layers.sparsity
        self.output_dropout = nn.Dropout(output_dropout)
        if projections:
            self.build_projections(bias, output_bias)
        self.qk_norm, self.q_norm, self.k_norm = qk_norm, None, None
        if qk_norm:
            self.build_norms(projections)

    def build_projections(self, bias: bool, output_bias: bool) -> None:
        inner = self.num_heads * self.head_dim
        self.q_proj = linear(self.hidden_size, inner, bias)
        self.k_proj = linear(self.hidden_size, inner, bias)
        self.v_proj = linear(self.hidden_size, inner, bias)
        self.o_proj = linear(inner, self.hidden_size, output_bias)

    def build_norms(self, projections: bool) -> None:
        if not self.per_head:
            self.refuse("qk_norm=True", "per_head")
        if not projections:
            raise ValueError("qk_norm=True needs projections=True: who brings q and k can normalise them.")
        self.q_norm = nn.RMSNorm(self.head_dim, eps=1e-6)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=1e-6) if self.key_dim else None

    # What a mechanism implements.

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask=None, position_ids=None) -> Tensor:
        """q, k, v (B, H, N, D) -> (B, H, N, D). In cross-attention there are M keys and values instead of N."""
        raise NotImplementedError

    def weights(self, q: Tensor, k: Tensor, key_mask=None, position_ids=None, rows=None) -> Tensor:
        """The matrix A of o = A v, literally: (B, H, N, N), or only the query rows `rows` (S,) of it."""
        raise NotImplementedError

    @classmethod
    def has_weights(cls) -> bool:
        """Whether there is an N×N matrix to show."""
        return cls.weights is not Attention.weights

    def naive(self, q: Tensor, k: Tensor, v: Tensor, key_mask=None, position_ids=None) -> Tensor:
        """The formula, O(N²): the slow obvious form beside `attend`."""
        return self.mix(self.weights(q, k, key_mask=key_mask, position_ids=position_ids), v, key_mask)

    def mix(self, weights: Tensor, v: Tensor, key_mask=None) -> Tensor:
        """o = A v"""
        return weights @ zero_masked(v, key_mask)

    def initial_state(self, batch_size: int, device=None, dtype=torch.float32) -> State:
        """The state before the first token: tensors with the batch dimension first."""
        self.refuse("a state", "supports_causal")

    def extend(self, q: Tensor, k: Tensor, v: Tensor, state: State, key_mask=None) -> tuple[Tensor, State]:
        """Like `attend`, for tokens that follow those in `state`."""
        self.refuse("a state", "supports_causal")

    def absorb(self, k: Tensor, v: Tensor, state: State, key_mask=None) -> State:
        """The state after tokens that are only looked at, k, v (B, H, N, D): a memory. A mechanism whose state needs
        their queries says `absorb = None`."""
        return self.extend(k[..., : self.head_dim], k, v, state, key_mask=key_mask)[1]

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        """One token, q, k, v (B, H, D) or (B, H, 1, D). Without gradients the state may be updated in place."""
        if q.dim() == 4:
            return self.extend(q, k, v, state)
        output, state = self.extend(q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2), state)
        return output.squeeze(2), state

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
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> AttentionOutput:
        """hidden_states (B, N, d) -> (B, N, d); key_mask (B, N), True = real token; position_ids (B, N) or (N,).

        Cross-attention: hidden_states look at context (B, M, d) instead of at themselves; context_mask (B, M).
        """
        self.before_forward()
        position_ids = self.check_inputs(
            hidden_states, key_mask, position_ids, grid, state, output_attentions, context, context_mask
        )
        q, k, v = self.project(hidden_states) if context is None else self.project(hidden_states, context)
        if self.rotary is not None:
            q, k = self.rotary(q, k, key_mask, position_ids)
        query_mask, key_mask = key_mask, key_mask if context is None else context_mask
        where = {"key_mask": key_mask, "position_ids": position_ids, **({"grid": grid} if self.needs_grid else {})}
        weights = sparsity = None
        if output_attentions:
            weights = self.weights(q, k, **where)
            output = self.mix(nn.functional.dropout(weights, self.dropout, self.training), v, key_mask)
        elif state is None:
            output = self.attend(q, k, v, **where)
        elif q.shape[2] == 1 and key_mask is None:
            output, state = self.step(q, k, v, state)
        else:
            output, state = self.extend(q, k, v, state, key_mask=key_mask)
        if self.sparsity is not None and self.training:
            sparsity = self.sparsity(self, q, k, query_mask=query_mask, **where)
        return AttentionOutput(self.merge_heads(output), weights, state, sparsity)

    def reference(
        self, hidden_states: Tensor, key_mask=None, position_ids=None, grid=None, context=None, context_mask=None
    ) -> Tensor:
        """`forward` by way of `naive`: (B, N, d) -> (B, N, d)."""
        position_ids = self.check_inputs(
            hidden_states, key_mask, position_ids, grid, context=context, context_mask=context_mask
        )
        where = {"key_mask": key_mask, "position_ids": position_ids, **({"grid": grid} if self.needs_grid else {})}
        if context is not None:
            where["key_mask"] = context_mask
        if not self.per_head:
            return self.naive(hidden_states, **where, **({} if context is None else {"context": context}))
        heads = self.project(hidden_states) if context is None else self.project(hidden_states, context)
        return self.merge_heads(self.naive(*heads, **where))

    def project(self, hidden_states: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, d) -> q (B, H, N, D), and, of the context if there is one, k and v (B, H, M, D)"""
        context = hidden_states if context is None else context
        return self.split_heads(self.q_proj(hidden_states), self.k_proj(context), self.v_proj(context))

    def split_heads(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, H·D) each, as projected -> (B, H, N, D)"""
        if self.qk_norm:
            q, k = self.normalise_heads(q, self.q_norm), self.normalise_heads(k, self.k_norm)
        return tuple(x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2) for x in (q, k, v))

    def normalise_heads(self, projected: Tensor, norm: nn.RMSNorm) -> Tensor:
        """Each vector of D channels among those of a token, (B, N, ·) -> (B, N, ·)"""
        heads = projected.to(norm.weight.dtype).unflatten(-1, (-1, self.head_dim))  # under autocast they differ
        return norm(heads).to(projected.dtype).flatten(2)

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
        """Raises, and says which mechanisms can: those with the flag."""
        from .registry import list_attentions  # which imports this file

        able = ", ".join(list_attentions(**{flag: True}))
        raise ValueError(f"'{self.name}' attention does not support {request}{reason}. Mechanisms that do: {able}.")

    def check_inputs(
        self,
        hidden_states,
        key_mask=None,
        position_ids=None,
        grid=None,
        state=None,
        output_attentions=False,
        context=None,
        context_mask=None,
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
            check_mask("key_mask", key_mask, batch, length)
        if context is not None or context_mask is not None:
            given = {"key_mask": key_mask, "position_ids": position_ids, "grid": grid, "state": state}
            self.check_context(batch, context, context_mask, [field for field in given if given[field] is not None])
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
            if not self.has_weights():
                self.refuse("output_attentions", "has_weights")
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

    def check_context(self, batch: int, context, context_mask, others: list[str]) -> None:
        """`others` are the fields given besides that belong to self-attention."""
        if context is None:
            raise ValueError("context_mask is given without context, whose padding it says.")
        if not self.supports_cross:
            self.refuse("context (cross-attention)", "supports_cross")
        if self.causal:
            raise ValueError(
                f"context needs causal=False: tokens of another sequence are neither before nor after, and this "
                f"'{self.name}' attention was built causal."
            )
        if others:
            hint = ": give context_mask instead" if others == ["key_mask"] else ""
            raise ValueError(f"context can't be combined with {', '.join(others)} of self-attention{hint}.")
        if context.dim() != 3 or context.shape[0] != batch or context.shape[2] != self.hidden_size:
            raise ValueError(f"context must be ({batch}, tokens, {self.hidden_size}), got {tuple(context.shape)}.")
        if context.shape[1] == 0:
            raise ValueError(f"context {tuple(context.shape)} is empty: at least one token is needed.")
        if context_mask is not None:
            check_mask("context_mask", context_mask, batch, context.shape[1])

    def extra_repr(self) -> str:
        return f"hidden_size={self.hidden_size}, num_heads={self.num_heads}, causal={self.causal}"


FLAGS = tuple(name for name, value in vars(Attention).items() if isinstance(value, bool))

# What holds for every mechanism, unless its `exempt_from` says that it does not.
LAWS = {
    "padding": "padding leaves the outputs of real tokens as they are",
    "row_sums": "the rows of `weights` are non-negative and sum to 1",
    "permutation": "permuting the tokens permutes the outputs",
    "derivatives": "gradients are the derivatives of the outputs, which do not jump",
}


def linear(in_features: int, out_features: int, bias: bool = True) -> nn.Linear:
    """A projection, initialised as Hugging Face's ViT does: truncated normal 0.02, zero bias."""
    layer = nn.Linear(in_features, out_features, bias=bias)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def check_mask(field: str, mask: Tensor, batch: int, length: int) -> None:
    if mask.dtype != torch.bool:
        raise ValueError(f"{field} must be boolean, True = real token, got {mask.dtype}.")
    if mask.shape != (batch, length):
        raise ValueError(f"{field} must be (batch, tokens) = {(batch, length)}, got {tuple(mask.shape)}.")


def check_tensor(field: str, value) -> None:
    if not isinstance(value, Tensor):
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise TypeError(f"{field} must be a torch.Tensor, got {kind}; torch.as_tensor makes one of an array.")


def check_positive(field: str, value) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{field}={value!r} must be a positive integer.")


def check_choice(field: str, value, choices: tuple) -> None:
    if value not in choices:
        raise ValueError(f"{field}={value!r} must be one of {', '.join(map(repr, choices))}.")
