"""Config of KerformerViT."""

from ..configuration import VisionTransformerConfig, strict_config

WIDTHS = {
    "tiny": {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    "small": {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
}
IMAGES = {
    "patch16_224": {"image_size": 224, "patch_size": 16},
    "patch32_224": {"image_size": 224, "patch_size": 32},
    "patch4_32": {"image_size": 32, "patch_size": 4},
    "patch8_64": {"image_size": 64, "patch_size": 8},
}
PRESETS = {
    f"{width}_{image}": {**sizes, **pixels} for width, sizes in WIDTHS.items() for image, pixels in IMAGES.items()
}


@strict_config
class KerformerViTConfig(VisionTransformerConfig):
    """A ViT whose attention is Kerformer (Gan et al. 2023), or any other mechanism that fits.

    Args:
        pooling: "cls", or "mean" over all tokens, CLS included; by default CLS where there is one.
        encoder_stride: pixels per token of the decoder for masked image modelling.
        pooler_output_size, pooler_act: of the pooler, as in transformers' ViT.

    Example:
        >>> config = KerformerViTConfig.from_preset("tiny_patch4_32", num_labels=10)
        >>> model = KerformerViTForImageClassification(config)
    """

    model_type = "kerformer_vit"
    presets = PRESETS

    attention: str = "kerformer"
    pooling: str | None = None
    encoder_stride: int | None = None
    pooler_output_size: int | None = None
    pooler_act: str = "tanh"

    def __post_init__(self, **kwargs):
        self.encoder_stride = self.encoder_stride or self.patch_size
        self.pooler_output_size = self.pooler_output_size or self.hidden_size
        super().__post_init__(**kwargs)

    def positive_fields(self):
        return (*super().positive_fields(), "encoder_stride", "pooler_output_size")

    def validate_pooling(self):
        if self.pooling not in (None, "mean", "cls"):
            raise ValueError(f"pooling={self.pooling!r} must be 'mean', 'cls' or None.")
        if self.pooling == "cls" and not self.use_cls_token:
            raise ValueError("pooling='cls' needs use_cls_token=True.")
