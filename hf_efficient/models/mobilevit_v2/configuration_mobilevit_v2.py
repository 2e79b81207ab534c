"""Config of MobileViTv2."""

from math import ceil

from transformers import MobileViTConfig
from transformers.activations import ACT2FN
from transformers.backbone_utils import BackboneConfigMixin

from ...attention import attention_options, get_attention
from ..configuration import EfficientConfig, strict_config

STRIDES = (2, 4, 8, 16, 32)  # of the five stages
V1 = {"block": "v1", "attention": "softmax", "hidden_dropout_prob": 0.1, "aspp_out_channels": 256}
PRESETS = {  # the first version's three sizes (Mehta & Rastegari 2021)
    "v1_xxs": {
        **V1,
        **{"hidden_sizes": (64, 80, 96), "neck_hidden_sizes": (16, 16, 24, 48, 64, 80, 320), "expand_ratio": 2.0},
    },
    "v1_xs": {**V1, "hidden_sizes": (96, 120, 144), "neck_hidden_sizes": (16, 32, 48, 64, 80, 96, 384)},
    "v1_s": {**V1, "hidden_sizes": (144, 192, 240), "neck_hidden_sizes": (16, 32, 64, 96, 128, 160, 640)},
}
CHOICES = {"odd_map": ("cvnets", "hf"), "segmentation_head": ("deeplabv3", "pspnet"), "block": ("v1", "v2")}
SAMPLING = {"of": ("pixels", "patches"), "method": ("uniform", "random", "top"), "stride": None}


@strict_config
class MobileViTv2Config(BackboneConfigMixin, EfficientConfig):
    """transformers' MobileViTV2 fields, with these additions and differences:

    Args:
        attention: how the pixels of one place in all patches see each other; "separable" is the paper's.
        num_latent_tokens: L of separable attention, 1 in the paper.
        num_attention_heads: of the other mechanisms.
        image_size: an image of any size passes; mechanisms with tables per position are made for this one.
        hidden_dropout_prob: after the attention and after the feed-forward network (none in transformers).
        classifier_dropout_prob: of channels, before the classifiers of PSPNet and of the auxiliary head. DeepLabv3 has
            `aspp_dropout_prob` there, image classification nothing.
        odd_map: what happens where a map is no multiple of `patch_size`. "cvnets", the authors' code: it is resized
            (bilinear) to the next multiple. "hf", transformers: the last row and column are left out of the attention
            and come back as zeros.
        dilate_conv_kxk: with output_stride 8 or 16, `conv_kxk` too is dilated where a stride was dropped, as by the
            authors. transformers does not: a config of its own gets False here, so that logits are equal.
        dilate: with output_stride 8 or 16, convolutions are dilated where a stride was dropped, so that they see as
            far as before. False for small images: of a map of 4×4, a dilated kernel sees little but padding, slowly.
        block: "v2", or "v1" of MobileViT, the first version, whose configs of transformers are taken as well. It goes
            with other widths, three layers in stage 2, a wider last map and dropout before the classifier.
        hidden_sizes, neck_hidden_sizes: with block="v1", widths of the tokens in stages 3 to 5, and of the stem, the
            five stages and the last map; by default those of MobileViT-S. `presets` has all three sizes.
        sampling: transformer layers for a part of the tokens (`sampling.py`): {"of": "pixels" or "patches", "method":
            "uniform", "random" or "top", "stride": 2} for a quarter of them.
        segmentation_head: "deeplabv3" (`aspp_*`, `atrous_rates`) or "pspnet" (`psp_*`).
        use_auxiliary_head, auxiliary_loss_weight: a second segmentation head, on stage 4, for training only.
        ssd_channels: width of SSDLite's six levels.
        ssd_aspect_ratios: of the anchors of each level, beside two squares.
        ssd_scales: side of the smallest and of the largest anchor, relative to the image.
        ssd_variances: scale of the box offsets, for centres and sizes.
        ssd_match_threshold: IoU from which an anchor belongs to a box.
        ssd_negative_ratio: background anchors in the loss for each that belongs to a box.
        ssd_score_threshold, ssd_top_k, ssd_nms_threshold, ssd_max_detections: of a class, only anchors above the
            score and the `top_k` best of them take part in non-maximum suppression; of all classes so many are kept.
        ssd_suppression: False returns the predictions of all anchors in evaluation too (for export).
    """

    model_type = "mobilevit_v2"
    presets = PRESETS

    attention: str = "separable"
    num_latent_tokens: int = 1
    num_attention_heads: int = 4
    num_channels: int = 3
    image_size: int | list[int] | tuple[int, int] = 256
    patch_size: int | list[int] | tuple[int, int] = 2
    block: str = "v2"
    hidden_sizes: list[int] | tuple[int, ...] | None = None
    neck_hidden_sizes: list[int] | tuple[int, ...] | None = None
    sampling: dict | None = None
    expand_ratio: float | int | None = None
    hidden_act: str = "swish"
    conv_kernel_size: int = 3
    output_stride: int = 32
    classifier_dropout_prob: float | int = 0.1
    hidden_dropout_prob: float | int = 0.0
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    aspp_out_channels: int = 512
    atrous_rates: list[int] | tuple[int, ...] = (6, 12, 18)
    aspp_dropout_prob: float | int = 0.1
    semantic_loss_ignore_index: int = 255
    n_attn_blocks: list[int] | tuple[int, ...] = (2, 4, 3)
    base_attn_unit_dims: list[int] | tuple[int, ...] = (128, 192, 256)
    width_multiplier: float | int = 1.0
    ffn_multiplier: float | int = 2
    attn_dropout: float | int = 0.0
    ffn_dropout: float | int = 0.0
    odd_map: str = "cvnets"
    dilate_conv_kxk: bool | None = None
    dilate: bool = True
    segmentation_head: str = "deeplabv3"
    psp_out_channels: int = 512
    psp_pool_sizes: list[int] | tuple[int, ...] = (1, 2, 3, 6)
    use_auxiliary_head: bool = False
    auxiliary_loss_weight: float | int = 0.4
    ssd_channels: list[int] | tuple[int, ...] = (512, 256, 256, 128, 128, 64)
    ssd_aspect_ratios: list | tuple = ((2, 3), (2, 3), (2, 3), (2, 3), (2, 3), (2,))
    ssd_scales: list[float | int] | tuple[float | int, ...] = (0.1, 1.05)
    ssd_variances: list[float | int] | tuple[float | int, ...] = (0.1, 0.2)
    ssd_match_threshold: float = 0.5
    ssd_negative_ratio: float | int = 3
    ssd_score_threshold: float = 0.01
    ssd_top_k: int = 400
    ssd_nms_threshold: float = 0.5
    ssd_max_detections: int = 200
    ssd_suppression: bool = True
    _out_features: list[str] | None = None
    _out_indices: list[int] | None = None

    def __post_init__(self, **kwargs):
        if self.expand_ratio is None:
            self.expand_ratio = 4.0 if self.block == "v1" else 2.0
        if self.block == "v1":
            self.hidden_sizes = self.hidden_sizes or PRESETS["v1_s"]["hidden_sizes"]
            self.neck_hidden_sizes = self.neck_hidden_sizes or PRESETS["v1_s"]["neck_hidden_sizes"]
        if self.dilate_conv_kxk is None:
            self.dilate_conv_kxk = kwargs.get("model_type") != "mobilevitv2"
        if self.attention == "separable" and "num_latent_tokens" in self.attention_options:
            self.num_latent_tokens = self.attention_options["num_latent_tokens"]
            self.attention_options = {k: v for k, v in self.attention_options.items() if k != "num_latent_tokens"}
        self.set_output_features_output_indices(
            out_indices=kwargs.pop("out_indices", None), out_features=kwargs.pop("out_features", None)
        )
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict, **kwargs):
        """transformers' MobileViTConfig, too, is read."""
        if config_dict.get("model_type") == MobileViTConfig.model_type:
            config_dict = from_mobilevit(config_dict)
        return super().from_dict(config_dict, **kwargs)

    # Sizes that follow from the fields.

    @property
    def stage_names(self) -> list[str]:
        return ["stem", *(f"stage{index}" for index in range(1, 6))]

    @property
    def stage_widths(self) -> tuple[int, ...]:
        """Channels of the stem and of the five stages."""
        if self.block == "v1":
            return tuple(self.neck_hidden_sizes[:6])
        width = self.width_multiplier
        stem = make_divisible(min(max(32 * width, 16), 64), 8, 16)
        return stem, make_divisible(64 * width, 16), *(make_divisible(c * width, 8) for c in (128, 256, 384, 512))

    @property
    def attention_widths(self) -> tuple[int, ...]:
        """Channels of the tokens in stages 3, 4 and 5."""
        if self.block == "v1":
            return tuple(self.hidden_sizes)
        return tuple(make_divisible(width * self.width_multiplier, 8) for width in self.base_attn_unit_dims)

    @property
    def pooled_width(self) -> int:
        """Channels that the classifier sees."""
        return self.neck_hidden_sizes[6] if self.block == "v1" else self.stage_widths[-1]

    @property
    def dilations(self) -> tuple[tuple[int, int], ...]:
        """Of stages 3, 4 and 5: dilation of the downsampling block, which then has stride 1 where the second, that of
        what follows, is larger."""
        dilated = {32: 0, 16: 1, 8: 2}[self.output_stride]  # stages whose stride is replaced
        after = [2 ** max(0, stage - 2 + dilated) for stage in range(3)]
        return tuple(zip([1, *after[:-1]], after, strict=True))

    @property
    def image_shape(self) -> tuple[int, int]:
        return pair(self.image_size)

    @property
    def patch_shape(self) -> tuple[int, int]:
        return pair(self.patch_size)

    @property
    def chosen_patch(self) -> tuple[int, int]:
        """Rows and columns of pixels in a patch that the transformer sees."""
        stride = self.sampling["stride"] if self.samples("pixels") else 1
        return tuple(side // stride for side in self.patch_shape)

    def samples(self, of: str, *methods: str) -> bool:
        """Whether the transformer sees only a part of the pixels or patches, and by one of the methods, if any."""
        sampling = self.sampling or {}
        return sampling.get("of") == of and (not methods or sampling.get("method") in methods)

    def grid(self, stage: int) -> tuple[int, int]:
        """Rows and columns of patches that the transformer of stage 3, 4 or 5 sees, for images of `image_size`."""
        stride = min(STRIDES[stage - 1], self.output_stride)
        sides = (
            ceil(pixels / stride) / patch for pixels, patch in zip(self.image_shape, self.patch_shape, strict=True)
        )
        grid = tuple(ceil(side) if self.odd_map == "cvnets" or self.block == "v1" else int(side) for side in sides)
        if self.samples("patches", "uniform"):
            return tuple(ceil(side / self.sampling["stride"]) for side in grid)
        return grid

    def options_of_layer(self, stage: int, index: int) -> dict:
        """What layer `index` (of all) in a stage passes to `build_attention`."""
        options = {"dropout": self.attn_dropout, "layer_idx": index}
        if "max_length" in attention_options(self.attention):
            rows, columns = self.grid(stage)
            options["max_length"] = max(1, rows * columns)
        return {**options, **self.attention_options}

    # What the fields must be.

    def misfit(self, name):
        if self.samples("patches", "random", "top") and get_attention(name).needs_grid:
            return "needs a grid of patches: set sampling.method to 'uniform'"
        if not get_attention(name).per_head or "head_dim" in self.attention_options:
            return None
        if self.num_attention_heads > 0 and any(width % self.num_attention_heads for width in self.attention_widths):
            return (
                f"splits {self.attention_widths} channels into num_attention_heads={self.num_attention_heads} heads: "
                "choose a common divisor, or give head_dim in attention_options"
            )
        return None

    def positive_fields(self):
        sizes = ("num_latent_tokens", "num_attention_heads", "num_channels", "expand_ratio", "ffn_multiplier")
        heads = ("aspp_out_channels", "psp_out_channels", "ssd_top_k", "ssd_max_detections", "ssd_negative_ratio")
        return (*sizes, *heads, "width_multiplier", "layer_norm_eps", "initializer_range")

    def validate_sizes(self):
        for name in ("image_size", "patch_size"):
            value = getattr(self, name)
            if (not isinstance(value, int) and len(value) != 2) or min(pair(value)) <= 0:
                raise ValueError(f"{name}={value!r} must be a positive size, or (height, width).")
        if any(patch > pixels for patch, pixels in zip(self.patch_shape, self.image_shape, strict=True)):
            raise ValueError(f"patch_size={self.patch_size!r} is larger than image_size={self.image_size!r}.")
        if self.conv_kernel_size < 1 or self.conv_kernel_size % 2 == 0:
            raise ValueError(f"conv_kernel_size={self.conv_kernel_size} must be odd.")
        if self.output_stride not in (8, 16, 32):
            raise ValueError(f"output_stride={self.output_stride} must be 8, 16 or 32.")
        self._check_lists(3, ("n_attn_blocks", "base_attn_unit_dims", "atrous_rates"))
        self._check_lists(6, ("ssd_channels",))
        self._check_lists(None, ("psp_pool_sizes",))
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act={self.hidden_act!r} is unknown; known: {', '.join(sorted(ACT2FN))}.")

    def _check_lists(self, length: int | None, names: tuple[str, ...]):
        for name in names:
            values = getattr(self, name)
            if len(values) != (length or len(values)) or not values or min(values) < 1:
                count = "" if length is None else f"{length} "
                raise ValueError(f"{name}={values!r} must be {count}positive integers.")

    def validate_block(self):
        if self.block == "v1":
            self._check_lists(3, ("hidden_sizes",))
            self._check_lists(7, ("neck_hidden_sizes",))
            if self.width_multiplier != 1:
                raise ValueError(
                    f"width_multiplier={self.width_multiplier!r} is for block='v2'; with block='v1' widths are "
                    "hidden_sizes and neck_hidden_sizes."
                )
            return
        for name in ("hidden_sizes", "neck_hidden_sizes"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}={getattr(self, name)!r} needs block='v1'; block='v2' has width_multiplier.")

    def validate_sampling(self):
        if self.sampling is None:
            return
        if set(self.sampling) != set(SAMPLING):
            raise ValueError(f"sampling={self.sampling!r} must have exactly the keys {', '.join(SAMPLING)}.")
        for key in ("of", "method"):
            if self.sampling[key] not in SAMPLING[key]:
                choices = ", ".join(map(repr, SAMPLING[key]))
                raise ValueError(f"sampling.{key}={self.sampling[key]!r} must be one of {choices}.")
        stride = self.sampling["stride"]
        if type(stride) is not int or stride < 1:
            raise ValueError(f"sampling.stride={stride!r} must be a positive integer.")
        if self.sampling["of"] == "pixels" and any(side % stride for side in self.patch_shape):
            raise ValueError(f"sampling.stride={stride} must divide patch_size={self.patch_size!r}.")

    def validate_choices(self):
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {', '.join(choices)}.")
        for name in (
            "classifier_dropout_prob",
            "hidden_dropout_prob",
            "aspp_dropout_prob",
            "attn_dropout",
            "ffn_dropout",
        ):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must lie in [0, 1).")
        if self.auxiliary_loss_weight < 0:
            raise ValueError(f"auxiliary_loss_weight={self.auxiliary_loss_weight!r} must not be negative.")

    def validate_separable(self):
        if self.attention != "separable":
            if self.num_latent_tokens != 1:
                raise ValueError(f"num_latent_tokens={self.num_latent_tokens} needs attention='separable'.")
            return
        if self.attention_options:
            raise ValueError(
                f"attention_options={self.attention_options!r}: separable attention has its options in the fields "
                "num_latent_tokens, attn_dropout and hidden_dropout_prob."
            )
        if self.num_latent_tokens > 0 and any(width % self.num_latent_tokens for width in self.attention_widths):
            raise ValueError(f"num_latent_tokens={self.num_latent_tokens} must divide {self.attention_widths}.")

    def validate_detection(self):
        ratios = self.ssd_aspect_ratios
        if len(ratios) != 6 or not all(isinstance(r, list | tuple) and all(x > 0 for x in r) for r in ratios):
            raise ValueError(f"ssd_aspect_ratios={ratios!r} must be 6 lists of positive numbers, one for each level.")
        for name in ("ssd_scales", "ssd_variances"):
            values = getattr(self, name)
            if len(values) != 2 or min(values) <= 0:
                raise ValueError(f"{name}={values!r} must be 2 positive numbers.")
        for name in ("ssd_match_threshold", "ssd_nms_threshold", "ssd_score_threshold"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must lie in [0, 1).")


def from_mobilevit(config_dict: dict) -> dict:
    """The fields of transformers' MobileViTConfig in our words; what its file leaves out are its own defaults."""
    fields = MobileViTConfig.from_dict(config_dict).to_dict()
    bias = fields.pop("qkv_bias")
    fields["ffn_multiplier"] = fields.pop("mlp_ratio")
    fields["attn_dropout"] = fields.pop("attention_probs_dropout_prob")
    options = {} if bias else {"bias": False}
    ours = {"model_type": "mobilevit_v2", "block": "v1", "attention": "softmax", "dilate_conv_kxk": False}
    return {**fields, **ours, "attention_options": options}


def pair(size: int | list[int] | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


def make_divisible(value: float, divisor: int, least: int | None = None) -> int:
    """The multiple of `divisor` nearest to `value`, but no less than 0.9 of it."""
    rounded = max(least or divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * value else rounded + divisor
