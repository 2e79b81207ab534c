"""Config of Kerformer for text."""

from dataclasses import field

from ...attention import get_attention
from ...layers.ngrams import check_ngrams
from ..configuration import EncoderConfig, strict_config

LRA_SIZES = {  # Tay et al. 2020, "Long Range Arena"; lengths in tokens, bytes or pixels
    "lra_listops": (2000, 512, 6, 8, 2048),
    "lra_text": (4000, 256, 4, 4, 1024),
    "lra_retrieval": (4000, 128, 4, 4, 512),
    "lra_pathfinder": (1024, 128, 4, 4, 128),
}
FIELDS = ("max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
PRESETS = {name: dict(zip(FIELDS, sizes, strict=True)) for name, sizes in LRA_SIZES.items()}


@strict_config
class KerformerTextConfig(EncoderConfig):
    """An encoder of texts whose attention is Kerformer (Gan et al. 2023), or any bidirectional mechanism that fits.

    The fields of `EncoderConfig`, and:

    Args:
        vocab_size: by default the bytes, padding and the mask.
        max_position_embeddings: the most tokens of a text; tables of a mechanism (SE-K's) have as many.
        position_embedding: "learned", one vector for each position, or "rotary" (Su et al. 2021), which turns queries
            and keys.
        rope_theta: base of rotary positions.
        ngrams: the n-grams that end with each token, up to so many tokens, are embedded with it (`layers/ngrams.py`):
            for texts of bytes; 0 = none, as in the paper.
        ngram_buckets: rows of their tables, one for each length.
        pooling: what a text is classified by: the "mean" over its tokens, or "cls", a learned token that the model
            puts before them. It is then the first of all outputs, at position 0.

    Example:
        >>> config = KerformerTextConfig.from_preset("lra_text", num_labels=2)
        >>> model = KerformerTextForSequenceClassification(config)
    """

    model_type = "kerformer_text"
    presets = PRESETS

    attention: str = "kerformer"
    vocab_size: int = 258
    max_position_embeddings: int = 512
    position_embedding: str = "learned"
    rope_theta: float | int = 10000.0
    ngrams: int = 0
    ngram_buckets: int = 16384
    pooling: str = "mean"
    hidden_dropout_prob: float | int = 0.1
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    # Auto classes look here to tell a classifier of texts from one of pairs, and stumble over None.
    architectures: list[str] | None = field(default_factory=list)

    @property
    def num_prefix_tokens(self) -> int:
        return int(self.pooling == "cls")

    @property
    def num_positions(self) -> int:
        return self.num_prefix_tokens + self.max_position_embeddings

    def positive_fields(self):
        return (*super().positive_fields(), "vocab_size", "max_position_embeddings", "rope_theta")

    def validate_ngrams(self):
        check_ngrams(self)

    def validate_choices(self):
        for name, choices in {"position_embedding": ("learned", "rotary"), "pooling": ("mean", "cls")}.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {', '.join(map(repr, choices))}.")

    def validate_tokens(self):
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id={self.pad_token_id} must lie within vocab_size={self.vocab_size}.")

    def validate_rotary(self):
        head_dim = self.head_dim or self.hidden_size // max(1, self.num_attention_heads)
        if self.position_embedding == "rotary" and head_dim % 2:
            raise ValueError(f"heads of {head_dim} channels: position_embedding='rotary' needs an even number.")

    def misfit(self, name):
        mechanism = get_attention(name)
        if mechanism.needs_grid:
            return "needs a grid of patches, which a text is not"
        if not mechanism.supports_key_mask or "padding" in mechanism.exempt_from:
            return "can't leave padding out, so that a text would depend on the others in its batch"
        if self.position_embedding == "rotary" and (not mechanism.per_head or mechanism.key_dim == 0):
            return "has no queries and keys that rotary positions could turn: set position_embedding='learned'"
        return super().misfit(name)
