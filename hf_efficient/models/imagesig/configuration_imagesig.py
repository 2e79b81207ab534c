"""Config of ImageSig."""

from ...attention import get_attention
from ..configuration import EncoderConfig, check_normalisation, per_channel, strict_config
from .signature import signature_width


@strict_config
class ImageSigConfig(EncoderConfig):
    """Signatures of an image's rows, two convolutions over the rows, two linear layers (Ibrahim & Lyons 2022).

    With the defaults and two classes: 37,112 parameters, the paper's number.

    Args:
        image_size: rows and columns of pixels; other sizes are resized by the processor, never taken as they are.
        signature_depth: of the truncation: 3 + 9 + 27 + 81 = 120 numbers for each row at depth 4.
        two_directions: columns, too, behind the rows.
        rescale_levels: level k of a signature times k!, so that all levels are about equally large and are learnt from
            at once; the paper leaves them as they are.
        stem_channels: of the first convolution; the second has hidden_size.
        kernel_size, pool_size: of both, in rows.
        num_hidden_layers: transformer blocks between convolutions and pooler, with any attention that fits; the
            paper's network has none. num_attention_heads, intermediate_size and other fields of `EncoderConfig` are
            theirs.
        pooler_output_size: width of the first linear layer.
        classifier_dropout_prob: before the second.
        initializer_range: read by nobody here, since weights start from Glorot's uniform distribution.
        image_mean, image_std: what images are normalised with, a number or one per channel; signatures are computed
            of colours from 0 to 1.

    Example:
        >>> model = ImageSigForImageClassification(ImageSigConfig(num_labels=2))
    """

    model_type = "imagesig"

    image_size: int | list[int] | tuple[int, int] = 64
    num_channels: int = 3
    signature_depth: int = 4
    two_directions: bool = False
    rescale_levels: bool = False
    stem_channels: int = 32
    hidden_size: int = 64
    kernel_size: int = 3
    pool_size: int = 3
    num_hidden_layers: int = 0
    num_attention_heads: int = 8
    intermediate_size: int = 64
    hidden_act: str = "relu"
    pooler_output_size: int = 50
    classifier_dropout_prob: float | int = 0.4
    image_mean: float | int | list[float] | tuple[float, ...] = 0.5
    image_std: float | int | list[float] | tuple[float, ...] = 0.5

    @property
    def image_shape(self) -> tuple[int, int]:
        """Rows and columns of pixels."""
        return (self.image_size,) * 2 if isinstance(self.image_size, int) else tuple(self.image_size)

    @property
    def num_paths(self) -> int:
        return sum(self.image_shape) if self.two_directions else self.image_shape[0]

    @property
    def signature_width(self) -> int:
        return signature_width(self.num_channels, self.signature_depth)

    @property
    def num_positions(self) -> int:
        """What two convolutions without padding, each with its max pooling, leave of the paths."""
        left = self.num_paths
        for _ in range(2):
            left = (left - self.kernel_size + 1) // self.pool_size
        return left

    def signature_options(self) -> dict:
        """What `ImageSignatures` takes. Normalised pixels times `scale` are colours up to a constant, which no
        signature sees."""
        return {
            "depth": self.signature_depth,
            "scale": per_channel(self.image_std, self.num_channels),
            "two_directions": self.two_directions,
            "rescale_levels": self.rescale_levels,
        }

    def positive_fields(self):
        blocks = (name for name in super().positive_fields() if name != "num_hidden_layers")
        sizes = ("num_channels", "signature_depth", "stem_channels", "kernel_size", "pool_size", "pooler_output_size")
        return (*blocks, *sizes)

    def validate_layers(self):
        if self.num_hidden_layers < 0:
            raise ValueError(f"num_hidden_layers={self.num_hidden_layers} must be 0 or a positive integer.")
        if not self.num_hidden_layers and self.attention_options:
            raise ValueError(f"attention_options={self.attention_options!r} need num_hidden_layers of 1 or more.")

    def validate_sizes(self):
        if len(self.image_shape) != 2 or min(self.image_shape) <= 0:
            raise ValueError(f"image_size={self.image_size!r} must be a positive size, or (height, width).")
        if self.kernel_size > 0 and self.pool_size > 0 and self.num_positions < 1:
            raise ValueError(
                f"image_size={self.image_size!r}: of {self.num_paths} paths nothing is left behind two convolutions "
                f"with kernel_size={self.kernel_size} and pool_size={self.pool_size}: choose larger images."
            )
        if self.signature_width > 100_000:
            raise ValueError(
                f"signature_depth={self.signature_depth} of num_channels={self.num_channels} makes "
                f"{self.signature_width:,} numbers for each row: 4 is usual."
            )
        if not 0 <= self.classifier_dropout_prob < 1:
            raise ValueError(f"classifier_dropout_prob={self.classifier_dropout_prob!r} must lie in [0, 1).")
        check_normalisation(self)

    def misfit(self, name):
        if not self.num_hidden_layers and name != "softmax":
            return "has no layer to be in: set num_hidden_layers to 1 or more"
        if get_attention(name).needs_grid:
            return "needs a grid of patches, which rows are not"
        return super().misfit(name)
