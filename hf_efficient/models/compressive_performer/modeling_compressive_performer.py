"""CompressivePerformer (Ragupathi et al. 2021, "Compressive Performers in Language Modelling").

A causal language model for texts of any length: segments of T tokens, linear attention within them, and a memory of
what came before, recent tokens as they were and older ones compressed. Time per token and size of the state do not
depend on how much has been read. Pre-norm blocks, rotary positions.

The ways a token can take; all give the same result, to rounding:

| call                                       | way                                                            |
| ------------------------------------------ | -------------------------------------------------------------- |
| training, or gradients enabled             | `run`: piece by piece in each layer, then the next layer       |
| padding, or rows at different places       | the same; a piece ends wherever some row's segment does        |
| a prompt, without gradients                | `fast/reading.py`: segment by segment through all layers       |
| the same, only the last logits wanted      | `fast/reading.py`: early segments pass the lower layers only   |
| one token after others (`generate`)        | `fast/decoding.py`: the weights at hand, no module is called   |
| the same with hooks, adapters, autocast    | `fast/reading.py`, which calls the modules                     |
| the same at the two ends of a segment      | `fast/reading.py`: memory moves on, a new state is made of it  |
| any of these, in `fast/switch.py`'s switch | `run`                                                          |
| training with `reversible: true`           | `reversible.py`, which keeps no activations                    |
"""

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ...attention import build_attention
from ...layers.block import mean_of
from ...layers.ngrams import NgramEmbedding
from ...layers.norms import NORMS
from ...layers.rotary import RotaryTable
from ..base import EfficientPreTrainedModel
from ..token_inputs import check_has_tokens, check_tokens, look_up
from .attention import MemoryAttention
from .cache import CompressiveMemory, CompressiveMemoryLayer
from .compression import COMPRESSIONS
from .configuration_compressive_performer import CompressivePerformerConfig
from .fast.decoding import decode, forget
from .fast.projection import NarrowProjection, Projection, read_older_checkpoints
from .fast.reading import can_read, read
from .inputs import MEMORY_FIELDS, check_memory, check_rows, real_tokens
from .memory import Memory, MemoryLengths
from .outputs import CompressivePerformerLMOutput, CompressivePerformerOutput, weighted
from .reversible import can_recompute, one_stream, run_reversibly, two_streams
from .schedule import Schedule


class CompressivePerformerMLP(nn.Module):
    def __init__(self, config: CompressivePerformerConfig):
        super().__init__()
        self.activation_fn = ACT2FN[config.hidden_act]
        self.fc1 = Projection(config.intermediate_size, config.hidden_size)
        self.fc2 = NarrowProjection(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.fc2(self.activation_fn(self.fc1(hidden_states)))


class CompressivePerformerLayer(GradientCheckpointingLayer):
    """a = h + Attention(LN(h)) over memory and segment,  h' = a + MLP(LN(a)); LN(h) is what is remembered. Where it is
    reversible, h is two streams (`reversible.py`)."""

    def __init__(self, config: CompressivePerformerConfig, index: int, lengths: MemoryLengths, positions: RotaryTable):
        super().__init__()
        self.reversible, self.hidden_size, eps = config.reversible, config.hidden_size, config.layer_norm_eps
        options = {"causal": True, "projections": False, **config.options_of_layer(index)}
        attention = build_attention(config.attention, self.hidden_size, config.num_attention_heads, **options)
        compression = COMPRESSIONS[config.compression](self.hidden_size, lengths.rate) if lengths.compressed else None
        self.memory_attention = MemoryAttention(attention, lengths, compression, positions, config.qk_norm_eps)
        self.layernorm_before, self.layernorm_after = (NORMS[config.norm](self.hidden_size, eps=eps) for _ in range(2))
        self.mlp = CompressivePerformerMLP(config)
        for output in (self.memory_attention.o_proj, self.mlp.fc2):
            output.starts_at_zero = config.zero_init_outputs
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden_states: Tensor, memory: Memory, schedule: Schedule
    ) -> tuple[Tensor, Memory, Tensor | None]:
        """(B, N, d) -> (B, N, d), the memory after them, and the compression's loss in training"""
        first, second = hidden_states[..., : self.hidden_size], hidden_states[..., -self.hidden_size :]
        attended, memory, loss = self.attend(second, memory, schedule)
        first = first + attended
        fed = self.feed(first)
        return torch.cat([first, second + fed], -1) if self.reversible else first + fed, memory, loss

    def attend(self, x: Tensor, memory: Memory, schedule: Schedule) -> tuple[Tensor, Memory, Tensor | None]:
        attended, memory, loss = self.memory_attention(self.layernorm_before(x), memory, schedule)
        return self.dropout(attended), memory, loss

    def feed(self, x: Tensor) -> Tensor:
        return self.dropout(self.mlp(self.layernorm_after(x)))


class CompressivePerformerPreTrainedModel(EfficientPreTrainedModel):
    config: CompressivePerformerConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["CompressivePerformerLayer"]
    _can_record_outputs = {"hidden_states": CompressivePerformerLayer}
    _is_stateful = True  # what has been taken in can't be taken out again: no assisted decoding

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Projection):
            init.trunc_normal_(module.weight, std=self.config.initializer_range)
            init.zeros_(module.bias)
        else:
            super()._init_weights(module)
        if getattr(module, "starts_at_zero", False):
            init.zeros_(module.weight)


class CompressivePerformerModel(CompressivePerformerPreTrainedModel):
    """The bare model."""

    def __init__(self, config: CompressivePerformerConfig):
        super().__init__(config)
        read_older_checkpoints()
        self.lengths = MemoryLengths(
            config.segment_length, config.memory_length, config.compressed_memory_length, config.compression_rate
        )
        positions = RotaryTable(self.lengths.positions(), config.head_dim, config.rope_theta)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        sizes = config.ngrams, config.ngram_buckets, config.hidden_size
        self.embed_ngrams = NgramEmbedding(*sizes) if config.ngrams else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(
            CompressivePerformerLayer(config, i, self.lengths, positions) for i in range(config.num_hidden_layers)
        )
        self.norm = NORMS[config.norm](config.hidden_size, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.note_attention()
        self.post_init()

    def note_attention(self) -> None:
        self.made_for = {name: getattr(self.config, name) for name in MEMORY_FIELDS}  # every memory of it

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        memory: Cache | None = None,
        reset: Tensor | None = None,
        last_tokens: int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CompressivePerformerOutput:
        """input_ids (B, N) -> last_hidden_state (B, N, d)

        Args:
            attention_mask: (B, N), or (B, all columns so far); 0 = padding, on any side, which is never remembered.
            past_key_values: what came before; updated in place.
            memory: the same, left as it is. `outputs.memory` goes on from there.
            reset: (B,), True = this row begins a new text.
            last_tokens: if only the outputs of so many last tokens are wanted: without gradients, earlier ones are
                then left out where that spares work. What is remembered is the same.
        """
        if kwargs.get("output_attentions") or self.config.output_attentions:
            raise ValueError("output_attentions: with a memory there is no N x N matrix to show.")
        hidden_states = self.embed(input_ids, inputs_embeds)
        batch, length, _ = hidden_states.shape
        cache = self.cache_for(past_key_values, memory, hidden_states)
        if reset is not None:
            check_rows("reset", reset.shape[0], batch)
            for kept in cache.layers:
                kept.reset(reset)
        mask = real_tokens(attention_mask, batch, length)
        hidden_states = self.dropout(self.with_ngrams(hidden_states, input_ids, cache.layers[0], mask))
        every_layer = bool(kwargs.get("output_hidden_states") or self.config.output_hidden_states)
        hidden_states = two_streams(hidden_states) if self.config.reversible else hidden_states
        hidden_states, auxiliary_loss = self.run(hidden_states, cache, mask, last_tokens, every_layer)
        return CompressivePerformerOutput(
            last_hidden_state=self.norm(one_stream(hidden_states) if self.config.reversible else hidden_states),
            past_key_values=cache if use_cache or past_key_values is not None else None,
            auxiliary_loss=auxiliary_loss,
            memory=cache,
        )

    def run(
        self, hidden_states: Tensor, cache: Cache, mask: Tensor | None, last_tokens: int | None, every_layer: bool
    ) -> tuple[Tensor, Tensor | None]:
        """(B, N, d) through all layers, the way that the table above says, and the compression's loss in training"""
        plain = self.training or torch.is_grad_enabled() or every_layer
        if not plain and mask is None and (decoded := decode(self, hidden_states, cache)) is not None:
            return decoded, None
        batch, length, _ = hidden_states.shape
        schedule = Schedule(cache.layers[0].seen or [0] * batch, length, self.lengths.segment, mask)
        if not plain and can_read(schedule):
            return read(self, hidden_states, cache, schedule, last_tokens), None
        if self.config.reversible and not every_layer and can_recompute(self):
            return run_reversibly(self, hidden_states, cache, schedule)
        losses = []
        for layer, kept in zip(self.layers, cache.layers, strict=True):
            hidden_states, loss = self.run_layer(layer, hidden_states, kept, schedule)
            losses.append(loss)
        return hidden_states, mean_of(losses)

    def run_layer(
        self, layer: nn.Module, hidden_states: Tensor, kept: CompressiveMemoryLayer, schedule: Schedule
    ) -> tuple[Tensor, Tensor | None]:
        """(B, N, d) through one layer, whose memory is kept."""
        before = Memory.empty(hidden_states[..., : layer.hidden_size]) if kept.memory is None else kept.memory
        hidden_states, after, loss = layer(hidden_states, memory=before, schedule=schedule)
        kept.store(after, schedule.after, hidden_states.shape[1], self.made_for)
        return hidden_states, loss

    def _apply(self, fn, recurse=True):
        forget(self)  # weights that are about to be replaced
        return super()._apply(fn, recurse)

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """(B, N, d)"""
        check_tokens(input_ids, inputs_embeds)
        if inputs_embeds is None:
            inputs_embeds = look_up(self.embed_tokens, input_ids, self.config.vocab_size)
        return inputs_embeds

    def with_ngrams(
        self, hidden_states: Tensor, input_ids: Tensor | None, kept: CompressiveMemoryLayer, mask: Tensor | None
    ) -> Tensor:
        """(B, N, d), together with the n-grams that end there, if the model embeds them; the last tokens are kept."""
        if self.embed_ngrams is None:
            return hidden_states
        check_has_tokens(input_ids, self.config.ngrams)
        ngrams, kept.tokens = self.embed_ngrams(input_ids, kept.tokens, mask)
        return hidden_states + ngrams

    def cache_for(self, past_key_values: Cache | None, memory: Cache | None, hidden_states: Tensor) -> Cache:
        """The cache that this call updates."""
        if past_key_values is not None and memory is not None:
            raise ValueError("give either past_key_values or memory: both are what came before.")
        given, name = (memory, "memory") if past_key_values is None else (past_key_values, "past_key_values")
        if given is None:
            return CompressiveMemory(self.config)
        check_memory(name, given, self.made_for, len(self.layers), hidden_states)
        return CompressiveMemory.copy_of(given, self.config) if past_key_values is None else given


class CompressivePerformerForCausalLM(CompressivePerformerPreTrainedModel, GenerationMixin):
    """With a head that predicts the next token."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: CompressivePerformerConfig):
        super().__init__(config)
        self.vocab_size = config.vocab_size
        self.model = CompressivePerformerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.lm_head.starts_at_zero = config.zero_init_outputs and not config.tie_word_embeddings
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        memory: Cache | None = None,
        reset: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CompressivePerformerLMOutput:
        """input_ids (B, N) -> logits (B, N, vocab_size)

        Args:
            labels: (B, N), as input_ids: they are shifted here; -100 is left out of the loss.
            shift_labels: (B, N), already shifted: the last token of a segment can then be scored too.
            logits_to_keep: only the last so many tokens' logits, or those at these indices; 0 = all.
            attention_mask, past_key_values, memory, reset: see `CompressivePerformerModel`.
        """
        scored = labels is not None or kwargs.get("shift_labels") is not None
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            memory=memory,
            reset=reset,
            last_tokens=logits_to_keep if isinstance(logits_to_keep, int) and not scored else None,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = lm_loss = None
        if scored:
            lm_loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
            loss = lm_loss + weighted(outputs.auxiliary_loss, self.config.auxiliary_loss_weight, labels, **kwargs)
        return CompressivePerformerLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            lm_loss=lm_loss,
            auxiliary_loss=outputs.auxiliary_loss,
            memory=outputs.memory,
        )


__all__ = ["CompressivePerformerForCausalLM", "CompressivePerformerModel", "CompressivePerformerPreTrainedModel"]
