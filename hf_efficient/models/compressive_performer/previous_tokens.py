"""What stood before a token, in its vector: a byte alone says little, a few in a row are half a word.

    h_t = E(x_t) + Σ_{i=1..n} E_i(x_{t−i})

A convolution over the last tokens, like those that linear attention is given elsewhere (Fu et al. 2023, "Hungry Hungry
Hippos"), but of the embeddings alone: lookups, no arithmetic. Only real tokens count, across segments and calls.
"""

import torch
from torch import Tensor, nn

NOTHING = 0  # stands before a text; token x is x + 1


class PreviousTokens(nn.Module):
    """
    Args:
        count: n.
    """

    def __init__(self, count: int, vocab_size: int, hidden_size: int):
        super().__init__()
        self.count, self.rows = count, vocab_size + 1
        self.tables = nn.Embedding(count * self.rows, hidden_size)  # of x_{t−n}, ..., x_{t−1}

    def nothing(self, batch: int, device: torch.device) -> Tensor:
        """(B, n), before a text"""
        return torch.full((batch, self.count), NOTHING, device=device)

    def forward(
        self, input_ids: Tensor, before: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """input_ids (B, N), the tokens before them (B, n) and which are real (B, N) -> (B, N, d), the last n (B, n)"""
        if before is None:
            before = self.nothing(input_ids.shape[0], input_ids.device)
        tokens, offsets = torch.cat([before, input_ids + 1], 1), torch.arange(self.count, device=input_ids.device)
        if mask is None:
            previous, last = tokens.unfold(1, self.count, 1)[:, :-1], tokens[:, -self.count :]
        else:
            rank = mask.to(tokens.device).long().cumsum(1)  # (B, N), real tokens so far
            order = torch.where(mask.to(tokens.device), rank - 1 + self.count, tokens.shape[1])
            order = torch.cat([offsets.expand_as(before), order], 1)
            tokens = tokens.new_zeros(tokens.shape[0], tokens.shape[1] + 1).scatter(
                1, order, tokens
            )  # real ones first
            starts = torch.cat([(rank - 1).clamp_min(0), rank[:, -1:]], 1)  # of each window, and of the last n
            windows = tokens.unsqueeze(1).expand(-1, starts.shape[1], -1).gather(2, starts.unsqueeze(2) + offsets)
            previous, last = windows[:, :-1], windows[:, -1]
        return self.tables(previous + offsets * self.rows).sum(2), last
