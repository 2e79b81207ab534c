"""Selective activation: compute only what a sample needs. Both routers save time in training as in inference, choose
for each sample by itself, and look at all of its tokens to choose, so they are bidirectional only.

`HeadRouter`: of H attention heads a sample passes through κ. A head is a group of D feature maps.

    s = softmax(mean_n LN(x)·W_g),    T = top-κ(s),    o = Σ_{h∈T} κ·s_h / Σ_{T} s · head_h(x) W_o^h

All four projections and the attention are computed for chosen heads only: cost × κ/H.

`TokenRouter`: of N tokens C = ⌈ρN⌉ pass through a block. Cost × ρ, of softmax attention × ρ².
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.base import Attention, check_positive, linear
from ..attention.masking import token_positions
from ..attention.registry import attention_options, build_attention, get_attention
from .patch_selection import top_indices


class RoutedOutput(NamedTuple):
    hidden_states: Tensor  # (B, N, d)
    balance: Tensor  # scalar: H·Σ_h f_h s̄_h, f = share of all selections; 1 when heads are used evenly
    selected: Tensor  # (B, H) bool
    sparsity: Tensor | None = None  # scalar, with `sparsity` attached: mean over the heads that ran


class PickedTokens(NamedTuple):
    tokens: Tensor  # (B, C, d)
    position_ids: Tensor  # (B, C)
    key_mask: Tensor | None  # (B, C), which of them a sample is entitled to, with key_mask
    index: Tensor  # (B, C, d): where they stood
    gate: Tensor  # (B, C, 1): σ(r)


class HeadRouter(nn.Module):
    """Multi-head attention of which every sample uses the `capacity` heads that suit it best.

    W_g starts at 0: all heads are equal, and in training Gumbel noise on log s lets every head have its turn; add
    `balance`, weighted, to the loss to keep it so. Without noise ties go to the first heads. With κ = H and W_g = 0
    this is ordinary multi-head attention. With κ = 1 the one weight is always 1, so W_g learns from `balance` alone.

    Args:
        name: mechanism of the heads, one that works on q, k and v.
        capacity: κ, heads per sample.
        options: of the mechanism; each head owns what the mechanism learns beyond projections.
    """

    def __init__(
        self,
        name: str,
        hidden_size: int,
        num_heads: int,
        capacity: int,
        head_dim: int | None = None,
        *,
        output_bias: bool = True,
        output_dropout: float = 0.0,
        **options,
    ):
        super().__init__()
        check_positive("num_heads", num_heads)
        check_positive("capacity", capacity)
        if capacity > num_heads:
            raise ValueError(f"capacity={capacity} heads per sample, but num_heads={num_heads}.")
        if head_dim is None and hidden_size % num_heads:
            raise ValueError(f"hidden_size={hidden_size} does not divide by num_heads={num_heads}: give head_dim.")
        if not get_attention(name).per_head:
            raise ValueError(f"'{name}' attention has no heads to choose from.")
        if options.get("causal"):
            raise ValueError("causal=True: heads are chosen by all tokens of a sample, so later ones would be seen.")
        self.capacity = capacity
        self.gate = nn.Linear(hidden_size, num_heads, bias=False)
        self.heads = nn.ModuleList(
            build_attention(
                name, hidden_size, 1, head_dim=head_dim or hidden_size // num_heads, output_bias=False, **options
            )
            for _ in range(num_heads)
        )
        self.output_bias = nn.Parameter(torch.empty(hidden_size)) if output_bias else None
        self.output_dropout = nn.Dropout(output_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.gate.weight)
        if self.output_bias is not None:
            nn.init.zeros_(self.output_bias)

    @classmethod
    def from_attention(cls, attention: Attention, capacity: int, **options) -> "HeadRouter":
        """The heads of a trained multi-head attention; `options` that it doesn't keep as attributes must be given."""
        kept = {
            name: value
            for name in attention_options(attention.name)
            if isinstance(value := getattr(attention, name, None), bool | int | float | str)
        }
        kept |= {"bias": attention.v_proj.bias is not None, "output_dropout": attention.output_dropout.p, **options}
        output_bias = attention.o_proj.bias
        router = cls(
            attention.name,
            attention.hidden_size,
            attention.num_heads,
            capacity,
            causal=attention.causal,
            output_bias=output_bias is not None,
            **kept,
        )
        state = {key: x for key, x in attention.state_dict().items() if key != "o_proj.bias"}
        if state.keys() != router.heads[0].state_dict().keys():
            names = ", ".join(sorted(state.keys() ^ router.heads[0].state_dict().keys()))
            raise ValueError(
                f"'{attention.name}' attention and its heads differ in {names}: give its options here too."
            )
        for index, head in enumerate(router.heads):
            head.load_state_dict(
                {
                    key: head_slice(key, state[key], x, index, attention.num_heads)
                    for key, x in head.state_dict().items()
                }
            )
        if output_bias is not None:
            router.output_bias.data.copy_(output_bias)
        return router.to(attention.o_proj.weight).train(attention.training)

    def forward(
        self,
        hidden_states: Tensor,
        key_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        grid: tuple[int, int] | None = None,
    ) -> RoutedOutput:
        """Like `Attention.forward`: (B, N, d) -> (B, N, d)"""
        scores = self.score(hidden_states, key_mask)  # (B, H)
        selected = self.select(scores)
        gates = torch.where(selected, scores, 0)
        gates = (self.capacity / gates.sum(1, keepdim=True) * gates).to(hidden_states.dtype)
        if position_ids is not None:
            position_ids = position_ids.expand(hidden_states.shape[:2])

        output, sparsity = torch.zeros_like(hidden_states), []
        for index, head in enumerate(self.heads):
            rows = selected[:, index].nonzero().squeeze(1)
            if not len(rows):
                continue
            result = head(
                hidden_states.index_select(0, rows),
                key_mask=None if key_mask is None else key_mask[rows],
                position_ids=None if position_ids is None else position_ids[rows],
                grid=grid,
            )
            gated = gates[rows, index, None, None] * result.hidden_states
            output.index_add_(0, rows, gated.to(output.dtype))
            if result.sparsity is not None:
                sparsity.append(result.sparsity)
        if self.output_bias is not None:
            output = output + self.output_bias

        frequency = selected.to(scores.dtype).mean(0) / self.capacity
        balance = len(self.heads) * (frequency * scores.mean(0)).sum()
        return RoutedOutput(
            self.output_dropout(output), balance, selected, torch.stack(sparsity).mean() if sparsity else None
        )

    def resampled(self, *grids) -> dict[str, Tensor]:
        """Like `Attention.resampled`, of all heads."""
        return {
            f"heads.{index}.{name}": table
            for index, head in enumerate(self.heads)
            for name, table in head.resampled(*grids).items()
        }

    def score(self, hidden_states: Tensor, key_mask: Tensor | None) -> Tensor:
        """s (B, H) in float32 or more, from the mean over real tokens"""
        x = F.layer_norm(hidden_states, hidden_states.shape[-1:])
        if key_mask is None:
            mean = x.mean(1)
        else:
            real = key_mask.unsqueeze(-1)
            mean = x.masked_fill(~real, 0).sum(1) / real.sum(1).clamp_min(1)
        logits = self.gate(mean)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)

    def select(self, scores: Tensor) -> Tensor:
        """(B, H) bool: κ heads per sample"""
        logits = scores.detach().log()
        if self.training:
            logits = logits - torch.empty_like(logits).exponential_().log()  # Gumbel noise
        order = logits.argsort(dim=1, descending=True, stable=True)
        return torch.zeros_like(logits, dtype=torch.bool).scatter(1, order[:, : self.capacity], True)


def head_slice(key: str, source: Tensor, target: Tensor, index: int, num_heads: int) -> Tensor:
    """What belongs to one head: a slice along the dimension that grows with the heads, or all that heads share."""
    for dim, (old, new) in enumerate(zip(source.shape, target.shape, strict=True)):
        if old == num_heads * new:
            source = source.narrow(dim, index * new, new)
    if source.shape != target.shape:
        raise ValueError(
            f"{key} of shape {tuple(source.shape)} can't be split into {num_heads} heads of {tuple(target.shape)}: "
            "give the options that the attention was built with."
        )
    return source


class TokenRouter(nn.Module):
    """A block for the tokens that need it: r = x·w_r, and the C = ⌈ρN⌉ tokens of largest r become

        x + σ(r)·(block(x) − x)

    while the others stay as they are. The factor σ(r) is what teaches w_r.

    Args:
        block: (hidden_states, position_ids=...) -> hidden_states, residual connections included. It gets the chosen
            tokens in their order, with their positions, and `key_mask` if there is one. None for callers that use
            `pick` and `put_back` themselves.
        capacity: ρ in (0, 1], share of the real tokens.
        num_prefix_tokens: tokens at the front (CLS) that are always chosen; they count among the C.
    """

    def __init__(
        self, block: Callable[..., Tensor] | None, hidden_size: int, capacity: float, num_prefix_tokens: int = 1
    ):
        super().__init__()
        if not 0 < capacity <= 1:
            raise ValueError(f"capacity={capacity!r} is a share of the tokens: it must lie in (0, 1].")
        for module in block.modules() if isinstance(block, nn.Module) else ():
            if isinstance(module, Attention) and (module.causal or module.needs_grid):
                reason = "is causal" if module.causal else "needs a whole grid"
                raise ValueError(f"TokenRouter can't pick tokens for '{module.name}' attention, which {reason}.")
        self.block, self.capacity, self.num_prefix_tokens = block, capacity, num_prefix_tokens
        self.router = linear(hidden_size, 1, bias=False)

    def forward(
        self, hidden_states: Tensor, key_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """(B, N, d) -> (B, N, d)"""
        picked = self.pick(hidden_states, key_mask, position_ids)
        where = {"position_ids": picked.position_ids} | (
            {} if picked.key_mask is None else {"key_mask": picked.key_mask}
        )
        return self.put_back(hidden_states, picked, self.block(picked.tokens, **where))

    def pick(
        self, hidden_states: Tensor, key_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> PickedTokens:
        """The C tokens of largest r, in their order."""
        batch, length, dim = hidden_states.shape
        scores = self.router(hidden_states).squeeze(-1)  # r (B, N)
        chosen, kept_mask = self.select(scores.detach(), key_mask)  # (B, C)
        if position_ids is not None:
            position_ids = position_ids.expand(batch, length)
        positions = token_positions(position_ids, key_mask, batch, length, scores.device).gather(1, chosen)
        index = chosen.unsqueeze(-1).expand(-1, -1, dim)
        gate = scores.gather(1, chosen).sigmoid().unsqueeze(-1)
        return PickedTokens(hidden_states.gather(1, index), positions, kept_mask, index, gate)

    def put_back(self, hidden_states: Tensor, picked: PickedTokens, transformed: Tensor) -> Tensor:
        """All tokens (B, N, d), the picked ones changed by as much as their gate says."""
        change = picked.gate * (transformed - picked.tokens)
        if picked.key_mask is not None:
            change = change.masked_fill(~picked.key_mask.unsqueeze(-1), 0)
        return hidden_states.scatter(1, picked.index, (picked.tokens + change).to(hidden_states.dtype))

    def select(self, scores: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(B, N) -> the chosen tokens (B, C), ascending, and with key_mask which of them a sample is entitled to"""
        batch, length = scores.shape
        count = min(length, max(self.num_prefix_tokens, self.share(length)))
        prefix = token_positions(None, key_mask, batch, length, scores.device) < self.num_prefix_tokens
        scores = scores.masked_fill(prefix, torch.inf)
        if key_mask is None:
            return top_indices(scores, count), None
        order = scores.masked_fill(~key_mask, -torch.inf).argsort(dim=1, descending=True, stable=True)[:, :count]
        real = key_mask.sum(1, keepdim=True)
        entitled = torch.minimum(real, self.share(real).clamp_min(self.num_prefix_tokens))
        chosen, rank = order.sort(1)
        return chosen, rank < entitled

    def share(self, tokens: int | Tensor) -> int | Tensor:
        """⌈ρN⌉, in whole numbers: 0.1·30 = 3.0000000000000004 would be 4"""
        return -(-tokens * round(self.capacity * 10**9) // 10**9)
