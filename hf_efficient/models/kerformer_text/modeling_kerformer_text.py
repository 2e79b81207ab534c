"""Kerformer for text (Gan et al. 2023, "A novel approach to attention mechanism using kernel functions: Kerformer",
sections 5.1-5.4): an encoder whose cost grows with the length of a text, not with its square.

Token and position embeddings, pre-norm blocks with any bidirectional mechanism, a final norm. Padding, on either side,
is seen by nobody and moves no position, so a text comes out the same whatever it is batched with.
"""

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput, SequenceClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ...attention import Attention, build_attention
from ...attention.masking import token_positions
from ...layers.block import TransformerBlock
from ...layers.ngrams import NgramEmbedding
from ...layers.rotary import RotaryPositions
from ..base import EfficientPreTrainedModel, check_single_labels
from ..token_inputs import check_has_tokens, check_length, check_tokens, key_mask_of, look_up
from .configuration_kerformer_text import KerformerTextConfig


class KerformerTextPreTrainedModel(EfficientPreTrainedModel):
    config: KerformerTextConfig
    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["KerformerTextEmbeddings", "TransformerBlock"]
    _input_embed_layer = "word_embeddings"
    _can_record_outputs = {"hidden_states": TransformerBlock, "attentions": Attention}


class KerformerTextEmbeddings(nn.Module):
    """x_n = W[token n] + P[position n], after a learned CLS with `pooling="cls"`; no P with rotary positions."""

    def __init__(self, config: KerformerTextConfig):
        super().__init__()
        size = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size, padding_idx=config.pad_token_id)
        self.position_embeddings = (
            nn.Embedding(config.num_positions, size) if config.position_embedding == "learned" else None
        )
        self.cls_token = nn.Parameter(torch.empty(1, 1, size)) if config.num_prefix_tokens else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.initializer_range = config.initializer_range

    def reset_parameters(self) -> None:
        """Of what this module itself owns."""
        if self.cls_token is not None:
            init.trunc_normal_(self.cls_token, std=self.initializer_range)

    def forward(self, embedded: Tensor, key_mask: Tensor | None, position_ids: Tensor | None) -> Tensor:
        """Tokens' vectors, key_mask and position_ids, all with the prefix -> (B, N, d)"""
        batch, length = embedded.shape[:2]
        if self.position_embeddings is not None:
            positions = token_positions(position_ids, key_mask, batch, length, embedded.device)
            shared = key_mask is None and position_ids is None
            embedded = embedded + self.position_embeddings(positions[:1] if shared else positions)
        return self.dropout(embedded)

    def with_prefix(self, embedded: Tensor) -> Tensor:
        if self.cls_token is None:
            return embedded
        return torch.cat([self.cls_token.expand(len(embedded), -1, -1).to(embedded.dtype), embedded], 1)


class KerformerTextModel(KerformerTextPreTrainedModel):
    """The bare model; `pooler_output` is what texts are classified by."""

    def __init__(self, config: KerformerTextConfig):
        super().__init__(config)
        self.embeddings = KerformerTextEmbeddings(config)
        sizes = config.ngrams, config.ngram_buckets, config.hidden_size
        self.embed_ngrams = NgramEmbedding(*sizes) if config.ngrams else None
        self.layers = nn.ModuleList(
            TransformerBlock(
                build_attention(
                    config.attention, config.hidden_size, config.num_attention_heads, **config.options_of_layer(index)
                ),
                **config.block_options(),
            )
            for index in range(config.num_hidden_layers)
        )
        if config.position_embedding == "rotary":
            rotary = RotaryPositions(config.num_positions, self.layers[0].attention.head_dim, config.rope_theta)
            for layer in self.layers:
                if layer.attention.key_dim != layer.attention.head_dim:
                    raise ValueError(
                        f"position_embedding='rotary' turns one key per head, and with these attention_options "
                        f"'{config.attention}' has several: set position_embedding='learned'."
                    )
                layer.attention.rotary = rotary
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """input_ids (B, N) -> last_hidden_state (B, N, d), or (B, 1 + N, d) with `pooling="cls"`; pooler_output (B, d)

        Args:
            attention_mask: (B, N), 0 = padding, on either side.
            position_ids: (B, N) or (1, N); by default counted over real tokens.
        """
        embedded = self.embed(input_ids, inputs_embeds)
        key_mask = key_mask_of(attention_mask, *embedded.shape[:2])
        if self.embed_ngrams is not None:
            check_has_tokens(input_ids, self.config.ngrams)
            embedded = embedded + self.embed_ngrams(input_ids, mask=key_mask)[0]
        if position_ids is not None:
            position_ids = self.check_positions(position_ids, key_mask, *embedded.shape[:2])
        prefix = self.config.num_prefix_tokens
        if prefix:
            key_mask = None if key_mask is None else nn.functional.pad(key_mask, (prefix, 0), value=True)
            position_ids = None if position_ids is None else nn.functional.pad(position_ids + prefix, (prefix, 0))
        hidden_states = self.embeddings(self.embeddings.with_prefix(embedded), key_mask, position_ids)
        output_attentions = kwargs.get("output_attentions")
        output_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, position_ids, output_attentions=bool(output_attentions), key_mask=key_mask
            )[0]
        hidden_states = self.layernorm(hidden_states)
        return BaseModelOutputWithPooling(
            last_hidden_state=hidden_states, pooler_output=self.pool(hidden_states, key_mask)
        )

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """(B, N, d)"""
        check_tokens(input_ids, inputs_embeds)
        length = (input_ids if inputs_embeds is None else inputs_embeds).shape[1]
        check_length(length, self.config.max_position_embeddings)
        if inputs_embeds is not None:
            return inputs_embeds
        return look_up(self.embeddings.word_embeddings, input_ids, self.config.vocab_size)

    def check_positions(self, position_ids: Tensor, key_mask: Tensor | None, batch: int, length: int) -> Tensor:
        """(B, N), with 0 at padding, where anything may stand"""
        if position_ids.shape not in ((batch, length), (1, length)):
            raise ValueError(f"position_ids must be {(batch, length)}, got {tuple(position_ids.shape)}.")
        positions = position_ids.expand(batch, length)
        positions = positions if key_mask is None else positions.masked_fill(~key_mask, 0)
        if positions.device.type == "cpu" and not torch.compiler.is_compiling():
            wrong = positions[(positions < 0) | (positions >= self.config.max_position_embeddings)]
            if len(wrong):
                raise ValueError(
                    f"position_ids holds {wrong[0].item()}, but positions are 0 to "
                    f"{self.config.max_position_embeddings - 1}."
                )
        return positions

    def pool(self, hidden_states: Tensor, key_mask: Tensor | None) -> Tensor:
        """(B, N, d) -> (B, d)"""
        if self.config.pooling == "cls":
            return hidden_states[:, 0]
        if key_mask is None:
            return hidden_states.mean(1)
        real = key_mask.unsqueeze(-1)
        return hidden_states.masked_fill(~real, 0).sum(1) / real.sum(1).clamp_min(1)


class KerformerTextForSequenceClassification(KerformerTextPreTrainedModel):
    """A linear classifier on the pooled text."""

    def __init__(self, config: KerformerTextConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.encoder = KerformerTextModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """labels (B,) class indices -> logits (B, num_labels)"""
        check_single_labels(labels, self.config.num_labels)
        outputs = self.encoder(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class KerformerTextForSequencePairClassification(KerformerTextPreTrainedModel):
    """Do two texts belong together? Both go through one encoder (Tay et al. 2020, retrieval): with a and b pooled,

        logits = W₂ act(W₁ [a; b; a∘b; a−b])

    Pairs are laid out as transformers' multiple-choice models have them, whose collator pads them too.
    """

    def __init__(self, config: KerformerTextConfig):
        super().__init__(config)
        self.num_labels, self.loss_type = config.num_labels, "ForSequenceClassification"
        self.encoder = KerformerTextModel(config)
        self.dense = nn.Linear(4 * config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """input_ids (B, 2, N), and so all others; labels (B,) class indices -> logits (B, num_labels)"""
        check_single_labels(labels, self.config.num_labels)
        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        given |= {"position_ids": position_ids, "inputs_embeds": inputs_embeds}
        outputs = self.encoder(**{name: texts_of_pairs(name, x) for name, x in given.items()}, **kwargs)
        a, b = outputs.pooler_output.unflatten(0, (-1, 2)).unbind(1)  # (B, d) each
        pair = self.activation(self.dense(torch.cat([a, b, a * b, a - b], -1)))
        logits = self.classifier(self.dropout(pair))
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def texts_of_pairs(name: str, x: Tensor | None) -> Tensor | None:
    """(B, 2, N, ...) -> (2B, N, ...)"""
    if not isinstance(x, Tensor):
        return x  # the encoder says what is wrong
    if x.dim() != (4 if name == "inputs_embeds" else 3) or x.shape[1] != 2:
        raise ValueError(f"{name} must be (batch, 2, tokens): two texts in each row, got {tuple(x.shape)}.")
    return x.flatten(0, 1)


class KerformerTextForMaskedLM(KerformerTextPreTrainedModel):
    """Predicts tokens that are masked, from both sides (Devlin et al. 2019)."""

    _tied_weights_keys = {"lm_head.weight": "encoder.embeddings.word_embeddings.weight"}

    def __init__(self, config: KerformerTextConfig):
        super().__init__(config)
        self.encoder = KerformerTextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """labels (B, N), −100 where nothing is to be predicted -> logits (B, N, vocab_size)"""
        check_single_labels(labels, self.config.vocab_size)
        outputs = self.encoder(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)
        logits = self.lm_head(outputs.last_hidden_state[:, self.config.num_prefix_tokens :])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


__all__ = [
    "KerformerTextForMaskedLM",
    "KerformerTextForSequenceClassification",
    "KerformerTextForSequencePairClassification",
    "KerformerTextModel",
    "KerformerTextPreTrainedModel",
]
