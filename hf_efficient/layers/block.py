"""The pre-norm transformer block that encoders share, around any attention mechanism:

    h = x + Attention(LN(x)),    y = h + MLP(LN(h))

Weights are named as in transformers' ViT.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from ..attention.masking import token_positions
from .routing import HeadRouter, TokenRouter
from .token_pooling import TokenPooling, has_significance


class BlockOutput(NamedTuple):
    hidden_states: Tensor  # (B, N, d)
    sparsity: Tensor | None = None  # scalar, in training with a sparsity regulariser attached
    balance: Tensor | None = None  # scalar, with head routing
    position_ids: Tensor | None = None  # (B, K) of the tokens that token pooling leaves, with it


class MLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int, hidden_act: str):
        super().__init__()
        self.activation_fn = ACT2FN[hidden_act]
        self.fc1 = nn.Linear(hidden_size, intermediate_size)
        self.fc2 = nn.Linear(intermediate_size, hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.fc2(self.activation_fn(self.fc1(hidden_states)))


class TransformerBlock(GradientCheckpointingLayer):
    """
    Args:
        attention: an `Attention`, or a `HeadRouter` of which every sample uses some heads.
        token_router: lets only some tokens through the block, if given.
        token_pooling: makes fewer tokens of those that leave the block, if given. They count by the attention they got
            where that is known for all of them (`has_significance`), and alike elsewhere.
        zero_init_outputs: o_proj and fc2 start at 0, so that the block starts as the identity.
    """

    def __init__(
        self,
        attention: nn.Module,
        hidden_size: int,
        intermediate_size: int,
        hidden_act: str = "gelu",
        dropout: float = 0.0,
        layer_norm_eps: float = 1e-12,
        token_router: TokenRouter | None = None,
        zero_init_outputs: bool = False,
        token_pooling: TokenPooling | None = None,
    ):
        super().__init__()
        self.attention, self.token_router, self.token_pooling = attention, token_router, token_pooling
        self.zero_init_outputs = zero_init_outputs
        self.layernorm_before = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.layernorm_after = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.mlp = MLP(hidden_size, intermediate_size, hidden_act)
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Of the layers within, which have been initialised before."""
        if self.zero_init_outputs:
            projections = (
                m.o_proj for m in self.attention.modules() if isinstance(getattr(m, "o_proj", None), nn.Linear)
            )
            for layer in (self.mlp.fc2, *projections):
                init.zeros_(layer.weight)

    def __call__(self, *args, **kwargs) -> BlockOutput:
        """Of a named tuple, reentrant checkpointing makes a plain one."""
        return BlockOutput(*super().__call__(*args, **kwargs))

    def forward(
        self,
        hidden_states: Tensor,
        position_ids: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        tables: dict[str, Tensor] | None = None,
        output_attentions: bool = False,
        first_only: bool = False,
        key_mask: Tensor | None = None,
    ) -> BlockOutput:
        """(B, N, d) -> (B, N, d), or (B, K, d) with token pooling

        Args:
            tables: stand in for the attention's own (`Attention.resampled`).
            first_only: the caller needs the first token only, so that the MLP may be spared the others.
            key_mask: (B, N), True = real token; not with a token router.
        """
        if self.token_router is None:
            weigh = self.token_pooling is not None and has_significance(self.attention)
            show = output_attentions or weigh
            output, weights = self.transform(hidden_states, position_ids, grid, tables, show, first_only, key_mask)
            return self.pool(output, weights if weigh else None, position_ids, key_mask)
        picked = self.token_router.pick(hidden_states, position_ids=position_ids)
        output, _ = self.transform(picked.tokens, picked.position_ids, None, tables, output_attentions)
        hidden_states = self.token_router.put_back(hidden_states, picked, output.hidden_states)
        return self.pool(output._replace(hidden_states=hidden_states), None, position_ids)

    def pool(
        self, output: BlockOutput, weights: Tensor | None, position_ids: Tensor | None, key_mask: Tensor | None = None
    ) -> BlockOutput:
        """What leaves the block, as fewer tokens: each stands where the one that its cluster began with stood."""
        if self.token_pooling is None:
            return output
        x, prefix = output.hidden_states, self.token_pooling.num_prefix_tokens
        pooled = self.token_pooling(x, weights, key_mask)
        positions = token_positions(position_ids, key_mask, *x.shape[:2], x.device)
        kept = positions[:, prefix:].gather(1, pooled.seeds)
        positions = torch.cat([positions[:, :prefix], kept], 1)
        return output._replace(hidden_states=pooled.hidden_states, position_ids=positions)

    def transform(
        self, hidden_states, position_ids, grid, tables, output_attentions, first_only=False, key_mask=None
    ) -> tuple[BlockOutput, Tensor | None]:
        """The block itself, and with output_attentions the weights (B, H, N, N)."""
        where = {"key_mask": key_mask, "position_ids": position_ids, "grid": grid}
        if output_attentions:
            if isinstance(self.attention, HeadRouter):
                raise ValueError("output_attentions: with routing='heads' no sample has the weights of all heads.")
            where["output_attentions"] = True
        normed = self.layernorm_before(hidden_states)
        attended = (
            functional_call(self.attention, tables, (normed,), where) if tables else self.attention(normed, **where)
        )
        hidden_states = hidden_states + self.dropout(attended.hidden_states)
        if first_only:
            hidden_states = hidden_states[:, :1]
        hidden_states = hidden_states + self.dropout(self.mlp(self.layernorm_after(hidden_states)))
        output = BlockOutput(hidden_states, attended.sparsity, getattr(attended, "balance", None))
        return output, getattr(attended, "weights", None)


def mean_of(values: list[Tensor | None]) -> Tensor | None:
    """The mean over layers of what they report, if any does."""
    values = [value for value in values if value is not None]
    return torch.stack(values).mean() if values else None
