"""The Vision Transformer (Dosovitskiy et al. 2021) with any attention, shared by KerformerViT and HuggingGreenViT.

Weights are named as in transformers' ViT, whose checkpoints load: with `attention="softmax"` the logits are equal.
"""

from typing import NamedTuple

from torch import Tensor, nn

from ..attention import Attention, build_attention
from ..attention.base import check_tensor
from ..layers.block import TransformerBlock, mean_of
from ..layers.patch_embedding import ImageEmbeddings
from ..layers.routing import TokenRouter
from ..layers.stem import ConvolutionalStem
from ..layers.token_pooling import TokenPooling
from .base import EfficientPreTrainedModel
from .configuration import VisionTransformerConfig

# transformers' ViT, whatever its modules are called today, is stored under these names.
STORED_VIT_NAMES = {
    r"encoder\.layer\.": "layers.",
    r"attention\.attention\.query": "attention.q_proj",
    r"attention\.attention\.key": "attention.k_proj",
    r"attention\.attention\.value": "attention.v_proj",
    r"attention\.output\.dense": "attention.o_proj",
    r"intermediate\.dense": "mlp.fc1",
    r"(?<!attention\.)output\.dense": "mlp.fc2",
}


class EncodedImage(NamedTuple):
    hidden_states: Tensor  # (B, N, d), before the final norm
    grid: tuple[int, int]  # rows and columns of patches in the whole image
    sparsity: Tensor | None  # mean over layers, in training with a sparsity regulariser
    balance: Tensor | None  # mean over layers, with head routing


class VisionTransformerPreTrainedModel(EfficientPreTrainedModel):
    config: VisionTransformerConfig
    base_model_prefix = "vit"
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    supports_gradient_checkpointing = True
    _no_split_modules = ["ImageEmbeddings", "TransformerBlock"]
    _input_embed_layer = "patch_embeddings"
    _can_record_outputs = {"hidden_states": TransformerBlock, "attentions": Attention}

    @classmethod
    def from_pretrained(cls, *args, key_mapping: dict[str, str] | None = None, **kwargs):
        return super().from_pretrained(*args, key_mapping=key_mapping or STORED_VIT_NAMES, **kwargs)

    def save_pretrained(self, *args, save_original_format: bool = False, **kwargs):
        return super().save_pretrained(*args, save_original_format=save_original_format, **kwargs)


def refuse_token_pooling(config: VisionTransformerConfig) -> None:
    """Raises for models that need a token of every patch."""
    if config.token_pooling is not None:
        raise ValueError(
            f"token_pooling={config.token_pooling!r} leaves fewer tokens than patches, and masked image modelling "
            "predicts every patch: set token_pooling to None. Its encoder can be pooled when it is fine-tuned."
        )


class VisionTransformerModel(VisionTransformerPreTrainedModel):
    """Embeddings and layers; families add what they do with the tokens."""

    def __init__(self, config: VisionTransformerConfig, use_mask_token: bool = False):
        super().__init__(config)
        self.embeddings = ImageEmbeddings(
            config.image_shape,
            config.patch_size,
            config.num_channels,
            config.hidden_size,
            dropout=config.hidden_dropout_prob,
            use_cls_token=config.use_cls_token,
            use_mask_token=use_mask_token,
            initializer_range=config.initializer_range,
            stem=self.build_stem(),
        )
        self.layers = nn.ModuleList(self.build_block(index) for index in range(config.num_hidden_layers))
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def build_stem(self) -> ConvolutionalStem | None:
        config = self.config
        if config.stem == "patch":
            return None
        sizes = config.patch_size, config.num_channels, config.hidden_size
        return ConvolutionalStem(*sizes, width=config.stem_width, overlaps=config.stem == "conv")

    def build_block(self, index: int) -> TransformerBlock:
        return TransformerBlock(
            self.build_attention(index),
            token_router=self.build_token_router(),
            token_pooling=self.build_token_pooling(index),
            **self.config.block_options(),
        )

    def build_attention(self, index: int) -> nn.Module:
        config = self.config
        return build_attention(
            config.attention, config.hidden_size, config.num_attention_heads, **config.options_of_layer(index)
        )

    def build_token_router(self) -> TokenRouter | None:
        """Lets only some tokens through a block, in families that do so."""
        return None

    def build_token_pooling(self, index: int) -> TokenPooling | None:
        """Makes fewer tokens of those that leave the block, where the config says so."""
        options = dict(self.config.token_pooling or {})
        if index + 1 not in options.pop("after", ()):
            return None
        return TokenPooling(float(options.pop("keep")), num_prefix_tokens=self.config.num_prefix_tokens, **options)

    def encode(
        self,
        pixel_values: Tensor,
        patch_indices: Tensor | None = None,
        bool_masked_pos: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        output_attentions: bool | None = None,
        cls_only: bool = False,
    ) -> EncodedImage:
        """pixel_values (B, C, H, W) through all layers; only the patches `patch_indices` (B, k), if given. With
        `cls_only` the last layer need not finish other tokens than CLS."""
        if pixel_values is None:
            raise ValueError("pixel_values is missing: a batch of images (batch, channels, height, width) is needed.")
        check_tensor("pixel_values", pixel_values)
        output_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        hidden_states, position_ids, grid = self.embeddings(
            pixel_values.to(self.embeddings.patch_embeddings.projection.weight.dtype),
            patch_indices=patch_indices,
            bool_masked_pos=bool_masked_pos,
            interpolate_pos_encoding=bool(interpolate_pos_encoding),
        )
        sparsity, balance = [], []
        for layer in self.layers:
            tables = None
            if grid != self.embeddings.grid:
                tables = layer.attention.resampled(self.embeddings.grid, grid, self.embeddings.num_prefix_tokens)
            first_only = cls_only and layer is self.layers[-1]
            output = layer(hidden_states, position_ids, grid, tables, bool(output_attentions), first_only)
            hidden_states = output.hidden_states
            if output.position_ids is not None:
                position_ids = output.position_ids
            sparsity.append(output.sparsity)
            balance.append(output.balance)
        return EncodedImage(hidden_states, grid, mean_of(sparsity), mean_of(balance))
