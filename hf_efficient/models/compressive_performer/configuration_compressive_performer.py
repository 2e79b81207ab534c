"""Config of CompressivePerformer."""

from transformers.activations import ACT2FN

from ...attention import attention_options, get_attention
from ...layers.ngrams import check_ngrams
from ...layers.norms import NORMS
from ..configuration import EfficientConfig, strict_config

COMPRESSIONS = ("conv", "autoencoder", "mean", "max")


@strict_config
class CompressivePerformerConfig(EfficientConfig):
    """A causal language model that reads its text in segments and remembers earlier ones (Ragupathi et al. 2021).

    One class, five systems: the Compressive Performer (the defaults); the Compressive Transformer
    (attention="softmax"); the Performer (no memory: memory_length=0, compressed_memory_length=0); Transformer-XL
    (attention="softmax", compressed_memory_length=0); a GPT-style baseline (attention="softmax", no memory).

    Args:
        segment_length: T, tokens that attend to one another directly.
        memory_length: L_m, the tokens before them that are remembered as they were.
        compressed_memory_length: L_c, slots for what is older, compressed.
        compression_rate: c, tokens per compressed slot.
        compression: "conv" and "autoencoder" are learned, by an auxiliary loss; "mean" and "max" have no parameters.
        auxiliary_loss_weight: of that loss beside the language model's.
        intermediate_size: of the feed-forward layers, by default 4 x hidden_size.
        norm: "layer" (mean and variance) or "rms" (Zhang and Sennrich 2019: the root mean square, no bias).
        qk_norm: queries and keys are divided by their root mean square, before their positions, and have a learned
            gain per channel (Henry et al. 2020). That bounds the norms that FAVOR+'s variance grows with.
        zero_init_outputs: the last matrix of every residual branch, and an untied head, start at zero: the model
            starts as the identity, and every token as likely as any.
        ngrams: the n-grams that end with each token, up to so many tokens, are embedded with it (`layers/ngrams.py`);
            0 = none.
        ngram_buckets: rows of their tables, one for each length.
        reversible: layers of two streams (Kitaev et al. 2020), whose activations training computes again from their
            outputs instead of keeping them: less memory, more time. Weights are named the same, but mean another
            function.
        rope_theta: base of the rotary positions.

    Example:
        >>> config = CompressivePerformerConfig(attention_options={"num_features": 256})
        >>> model = CompressivePerformerForCausalLM(config)
        >>> model.generate(input_ids, max_new_tokens=100)
    """

    model_type = "compressive_performer"
    keys_to_ignore_at_inference = ["past_key_values", "memory", "lm_loss", "auxiliary_loss"]

    attention: str = "performer"
    vocab_size: int = 256
    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    intermediate_size: int | None = None
    hidden_act: str = "gelu"
    norm: str = "layer"
    qk_norm: bool = False
    zero_init_outputs: bool = False
    segment_length: int = 768
    memory_length: int = 768
    compressed_memory_length: int = 1152
    compression_rate: int = 4
    compression: str = "conv"
    auxiliary_loss_weight: float | int = 1.0
    ngrams: int = 0
    ngram_buckets: int = 16384
    reversible: bool = False
    rope_theta: float | int = 10000.0
    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs):
        self.intermediate_size = self.intermediate_size or 4 * self.hidden_size
        super().__post_init__(**kwargs)

    @property
    def layer_types(self) -> list[str]:
        """Of which `DynamicCache` makes its layers."""
        return ["compressive_memory"] * self.num_hidden_layers

    @property
    def has_memory(self) -> bool:
        return bool(self.memory_length or self.compressed_memory_length)

    @property
    def context_length(self) -> int:
        """The most keys that a token can see."""
        return self.compressed_memory_length + self.memory_length + self.segment_length

    @property
    def head_dim(self) -> int:
        return self.attention_options.get("head_dim") or self.hidden_size // max(1, self.num_attention_heads)

    @property
    def qk_norm_eps(self) -> float | None:
        """Of the norms of queries and keys; None where they have none."""
        return self.layer_norm_eps if self.qk_norm else None

    def positive_fields(self):
        sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        return (*sizes, "segment_length", "compression_rate", "rope_theta", "layer_norm_eps", "initializer_range")

    def validate_layer_type(self):
        """transformers knows its own layer types only."""

    def validate_shape(self):
        for name in ("memory_length", "compressed_memory_length", "auxiliary_loss_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must be 0 or positive.")
        check_ngrams(self)
        heads = self.num_attention_heads
        if heads > 0 and self.hidden_size % heads and "head_dim" not in self.attention_options:
            raise ValueError(
                f"hidden_size={self.hidden_size} does not divide by num_attention_heads={heads}: "
                "choose a divisor, or give attention_options['head_dim']."
            )
        if self.head_dim % 2:
            raise ValueError(f"heads of {self.head_dim} channels: rotary positions need an even number.")
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act={self.hidden_act!r} is unknown; known: {', '.join(sorted(ACT2FN))}.")
        if self.norm not in NORMS:
            raise ValueError(f"norm={self.norm!r} must be one of {', '.join(map(repr, NORMS))}.")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must lie in [0, 1).")

    def validate_compression(self):
        if self.compression not in COMPRESSIONS:
            raise ValueError(f"compression={self.compression!r} must be one of {', '.join(map(repr, COMPRESSIONS))}.")
        if not self.compressed_memory_length or self.compression_rate <= 0:
            return
        for name in ("segment_length", "memory_length"):
            if getattr(self, name) % self.compression_rate:
                raise ValueError(
                    f"compression_rate={self.compression_rate} must divide {name}={getattr(self, name)}: "
                    "what leaves the memory is compressed in whole groups of so many tokens."
                )

    def validate_options(self):
        for option in ("projections", "bias", "output_bias", "output_dropout"):
            if option in self.attention_options:
                raise ValueError(f"attention_options[{option!r}]: the model has its own projections; leave it out.")

    def validate_context(self):
        given = self.attention_options.get("max_length")
        if given is not None and given < self.context_length:
            raise ValueError(
                f"attention_options['max_length']={given} is less than compressed_memory_length + memory_length + "
                f"segment_length = {self.context_length}: leave it out, and it is set to that."
            )

    def misfit(self, name):
        mechanism = get_attention(name)
        if not mechanism.supports_causal:
            return "is not causal"
        if not mechanism.per_head:
            return "has no queries and keys that rotary positions could turn"
        if self.has_memory and mechanism.absorb is None:
            return "can't take memory, whose queries are not known: set memory_length=0, compressed_memory_length=0"
        return None

    def options_of_layer(self, index: int) -> dict:
        """What layer `index` passes to `build_attention`."""
        options = {"dropout": self.attention_probs_dropout_prob, "layer_idx": index}
        if "max_length" in attention_options(self.attention):
            options["max_length"] = self.context_length
        return {**options, **self.attention_options}
