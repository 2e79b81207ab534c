"""What a language model's loss means, with units that are never mixed.

From the sum of −ln p over all predicted tokens, in nats:

    nats, bits per token    sum / tokens,    / ln 2
    perplexity              e^(nats per token) = 2^(bits per token): one number, whatever the base
    bits per character      sum / (ln 2 · characters)
    bits per byte           sum / (ln 2 · bytes of UTF-8)

Only the last two can be compared across tokenizers. A tokenizer with <unk> says less than the text does: there the sum
is that of a code which gives the text back, with every unknown word written out after its <unk>, at ln 257 for each of
its bytes and for its end. Perplexities of words stand beside their rate of <unk>, or mean little.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LanguageModelScores:
    """
    Args:
        nats: the sum of −ln p over the tokens.
        tokens, characters, bytes: how much text was predicted.
        spelled: the bytes of unknown words, and an end for each.
    """

    nats: float
    tokens: int
    characters: int
    bytes: int
    spelled: int = 0

    def __post_init__(self):
        for name in ("tokens", "characters", "bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1: nothing was predicted.")
        if self.bytes < self.characters:
            raise ValueError(f"bytes={self.bytes} can't be less than characters={self.characters}.")

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def bits_per_token(self) -> float:
        return self.nats_per_token / math.log(2)

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats_per_token) if self.nats_per_token < 700 else math.inf

    @property
    def bits(self) -> float:
        """In which the whole text can be given back."""
        return self.nats / math.log(2) + self.spelled * math.log2(257)

    @property
    def bits_per_character(self) -> float:
        return self.bits / self.characters

    @property
    def bits_per_byte(self) -> float:
        return self.bits / self.bytes

    def __add__(self, other: "LanguageModelScores") -> "LanguageModelScores":
        return LanguageModelScores(
            self.nats + other.nats,
            self.tokens + other.tokens,
            self.characters + other.characters,
            self.bytes + other.bytes,
            self.spelled + other.spelled,
        )

    def as_dict(self) -> dict[str, float]:
        names = ("nats_per_token", "bits_per_token", "perplexity", "bits_per_character", "bits_per_byte")
        return {name: getattr(self, name) for name in names}
