"""The n-grams that end with each token, embedded with it (Pagnoni et al. 2024, "Byte Latent Transformer", 3.2.1):

    h_t = E(x_t) + Σ_{i=2..n} E_i(g_i),    g_i = hash(x_{t−i+1}, ..., x_t) mod m

A byte alone says little, a few in a row are half a word. N-grams that share one of the m rows of their table are told
apart by those of other lengths. Lookups, no arithmetic; only real tokens count, across segments and calls.
"""

import torch
from torch import Tensor, nn

NOTHING = 0  # stands before a text; token x is x + 1
MULTIPLIER, PRIME = 1_000_003, 2**31 - 1  # of a polynomial hash, whose products stay below 2⁶³


class NgramEmbedding(nn.Module):
    """
    Args:
        longest: n; there is a table for each length from 2 on.
        buckets: m.
    """

    def __init__(self, longest: int, buckets: int, hidden_size: int):
        super().__init__()
        self.count, self.buckets = longest - 1, buckets
        self.tables = nn.Embedding(self.count * buckets, hidden_size)  # of the longest first

    def nothing(self, batch: int, device: torch.device) -> Tensor:
        """(B, n − 1), before a text"""
        return torch.full((batch, self.count), NOTHING, device=device)

    def forward(
        self, input_ids: Tensor, before: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """input_ids (B, N), those before them (B, n − 1), which are real (B, N) -> (B, N, d), the last (B, n − 1)"""
        if before is None:
            before = self.nothing(input_ids.shape[0], input_ids.device)
        tokens, offsets = torch.cat([before, input_ids + 1], 1), torch.arange(self.count, device=input_ids.device)
        if mask is None:
            previous, last = tokens.unfold(1, self.count, 1)[:, :-1], tokens[:, -self.count :]
        else:
            mask = mask.to(tokens.device)
            rank = mask.long().cumsum(1)  # (B, N), real tokens so far
            order = torch.where(mask, rank - 1 + self.count, tokens.shape[1])
            order = torch.cat([offsets.expand_as(before), order], 1)
            real_first = tokens.new_zeros(tokens.shape[0], tokens.shape[1] + 1).scatter(1, order, tokens)
            starts = torch.cat([(rank - 1).clamp_min(0), rank[:, -1:]], 1)  # of each window, and of the last n − 1
            windows = real_first.unsqueeze(1).expand(-1, starts.shape[1], -1).gather(2, starts.unsqueeze(2) + offsets)
            previous, last = windows[:, :-1], windows[:, -1]
        rows = self.hashed(previous, input_ids + 1) + offsets * self.buckets
        return self.tables(rows).sum(2), last

    def hashed(self, previous: Tensor, tokens: Tensor) -> Tensor:
        """(B, N, n − 1) tokens before those of (B, N) -> (B, N, n − 1): g_n, ..., g_2"""
        found = []
        for token in reversed(previous.unbind(2)):
            tokens = (tokens * MULTIPLIER + token) % PRIME
            found.append(tokens % self.buckets)
        return torch.stack(found[::-1], 2)


def check_ngrams(config) -> None:
    """Raises unless its fields `ngrams` and `ngram_buckets` are such as can be built."""
    if config.ngrams < 0 or config.ngrams == 1:
        raise ValueError(f"ngrams={config.ngrams} must be 0 (none), or 2 or more: the length of the longest.")
    if config.ngram_buckets < 1:
        raise ValueError(f"ngram_buckets={config.ngram_buckets} must be at least 1.")
