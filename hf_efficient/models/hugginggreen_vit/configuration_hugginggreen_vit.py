"""Config of HuggingGreenViT."""

import math

from ...attention import get_attention
from ..configuration import VisionTransformerConfig, check_normalisation, per_channel, strict_config

CHOICES = {
    "heuristic": ("none", "contrast", "variance", "entropy", "random"),
    "prob_schedule": ("product", "inverse_time", "exponential", "linear", "constant"),
    "attention_sparsity": ("none", "entropy", "hoyer"),
    "routing": ("none", "heads", "tokens"),
    "pooling": ("mean", "cls"),
}

# The research questions: of the paper's sizes, and what is learnt within minutes on two cores. Its text counts "heads"
# where its code counts layers: both are the same here. intermediate_size is not given; 4 · hidden_size is usual.
RQ2 = {
    **{"image_size": 224, "patch_size": 16, "hidden_size": 64, "head_dim": 64, "intermediate_size": 256},
    **{"heuristic": "contrast", "top_k": 138, "prob": 0.5, "prob_decay_rate": 5e-3},
}
SMALL = {
    **{"image_size": 32, "patch_size": 4, "hidden_size": 96, "intermediate_size": 192},
    **{"num_hidden_layers": 4, "num_attention_heads": 4},
    **{"stem": "conv", "zero_init_outputs": True, "initializer_range": 0.06},
}
PRESETS = {
    "rq1": {  # 1.8 billion parameters: the paper takes this for ViT-H/14, which has a third of them
        **{"image_size": 224, "patch_size": 16, "hidden_size": 3072, "intermediate_size": 12288},
        **{"num_hidden_layers": 16, "num_attention_heads": 16},
        **{"heuristic": "none", "top_k": 196, "probabilistic": False, "prob_decay_rate": 0.0},
    },
    "rq1_small": {**SMALL, "heuristic": "none"},
    **{f"rq2_{n}": {**RQ2, "num_hidden_layers": n, "num_attention_heads": n} for n in (4, 8, 12)},
    "small": {**SMALL, "attention": "softmax"},
}


@strict_config
class HuggingGreenViTConfig(VisionTransformerConfig):
    """A ViT with patch selection, probabilistic attention, selective activation (Limone & Iannotti, "HuggingGreen").

    The paper's words are kept, not its contradictions. `probabilistic` is about patches, not about attention. `prob`
    is the probability that patches are dropped ("1 means that the heuristic will not be applied" contradicts its own
    definition and code): heuristic="none" is what switches selection off. Its "depth" is called a number of heads in
    the text, but counts layers in the code: here num_hidden_layers and num_attention_heads are separate.

    Neither probabilistic nor gaussian_mixture attention costs less than softmax; dropped patches, fewer heads, routing
    and linear mechanisms do.

    Args:
        heuristic: what patches are ranked by in training: "contrast", "variance", "entropy"; "random", by nothing, as
            the control; or "none" to keep all.
        top_k: patches to keep, by default 70 %; images of another size keep the same share.
        probabilistic: sample patches by the heuristic's values instead of taking the k best.
        prob: probability, per batch, that patches are dropped in epoch 0.
        prob_decay_rate, prob_schedule: how it falls with epochs: "product" (the authors' code), "inverse_time",
            "exponential", "linear", "constant"; see `layers/patch_selection.py`.
        select_at_eval: keep the k best patches in evaluation too, which otherwise sees the whole image.
        selection_seed: of what selection draws, together with the step.
        image_mean, image_std: what images are normalised with, a number or one per channel; those of the processor.
        attention_sparsity: regulariser "entropy", "hoyer" or "none"; see `layers/sparsity.py`.
        attention_sparsity_weight: what the loss adds of it; 0 = off.
        routing: "heads" or "tokens" chosen for each image in every layer, or "none"; see `layers/routing.py`.
        routing_capacity: ρ, the share of heads ⌈ρH⌉ or tokens ⌈ρN⌉ that are computed.
        routing_balance_weight: what the loss adds of the heads' balance.
        pooling: "mean" over all tokens, CLS included, or "cls".
        mask_ratio: share of the kept patches that masked image modelling hides.
        num_queries: of detection; 1 for one object per image.
        class_cost, bbox_cost, giou_cost, eos_coefficient, bbox_loss_coefficient, giou_loss_coefficient: of
            transformers' detection loss.

    Example:
        >>> config = HuggingGreenViTConfig.from_preset("rq2_4", num_labels=10)  # or another of `presets`
        >>> config = HuggingGreenViTConfig(heuristic="entropy", top_k=98, num_labels=10)
        >>> model = HuggingGreenViTForImageClassification(config)
    """

    model_type = "hugginggreen_vit"
    presets = PRESETS
    keys_to_ignore_at_inference = ["patch_indices", "bool_masked_pos", "attn_sparsity", "routing_balance"]

    attention: str = "probabilistic"
    heuristic: str = "variance"
    top_k: int | None = None
    probabilistic: bool = True
    prob: float | int = 0.5
    prob_decay_rate: float | int = 5e-3
    prob_schedule: str = "product"
    select_at_eval: bool = False
    selection_seed: int = 0
    image_mean: float | int | list[float] | tuple[float, ...] = 0.5
    image_std: float | int | list[float] | tuple[float, ...] = 0.5
    attention_sparsity: str = "none"
    attention_sparsity_weight: float | int = 1e-3
    routing: str = "none"
    routing_capacity: float | int = 0.5
    routing_balance_weight: float | int = 1e-2
    pooling: str = "mean"
    mask_ratio: float = 0.15
    num_queries: int = 16
    class_cost: float | int = 1
    bbox_cost: float | int = 5
    giou_cost: float | int = 2
    eos_coefficient: float | int = 0.1
    bbox_loss_coefficient: float | int = 5
    giou_loss_coefficient: float | int = 2
    auxiliary_loss: bool = False

    @property
    def num_kept_patches(self) -> int:
        """top_k, or ⌈.7·n⌉ as in the paper (138 of 196)."""
        return math.ceil(0.7 * self.num_patches - 1e-9) if self.top_k is None else self.top_k

    @property
    def num_routed_heads(self) -> int:
        """κ = ⌈ρH⌉"""
        return math.ceil(self.routing_capacity * self.num_attention_heads - 1e-9)

    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel."""
        return per_channel(self.image_mean, self.num_channels), per_channel(self.image_std, self.num_channels)

    def positive_fields(self):
        return (*super().positive_fields(), "top_k", "num_queries")

    def validate_choices(self):
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {', '.join(map(repr, choices))}.")

    def validate_ranges(self):
        if not 0 <= self.prob <= 1:
            raise ValueError(f"prob={self.prob!r} is a probability: it must lie in [0, 1].")
        if not 0 < self.routing_capacity <= 1:
            raise ValueError(f"routing_capacity={self.routing_capacity!r} is a share: it must lie in (0, 1].")
        if not 0 < self.mask_ratio < 1:
            raise ValueError(f"mask_ratio={self.mask_ratio!r} is a share of the patches: it must lie in (0, 1).")
        weights = ("prob_decay_rate", "attention_sparsity_weight", "routing_balance_weight", "eos_coefficient")
        costs = ("class_cost", "bbox_cost", "giou_cost")
        for name in (*weights, *costs, "bbox_loss_coefficient", "giou_loss_coefficient"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)!r} must be 0 or a positive number.")
        if not any(getattr(self, name) for name in costs):
            raise ValueError(f"{', '.join(costs)}: at least one must be above 0.")
        if self.auxiliary_loss:
            raise ValueError("auxiliary_loss=True needs several decoder layers; detection has one.")

    def validate_selection(self):
        if self.top_k is not None and self.patch_size > 0 and self.top_k > self.num_patches:
            raise ValueError(
                f"top_k={self.top_k}, but image_size={self.image_size} and patch_size={self.patch_size} make only "
                f"{self.num_patches} patches."
            )
        if self.pooling == "cls" and not self.use_cls_token:
            raise ValueError("pooling='cls' needs use_cls_token=True.")
        check_normalisation(self)

    def misfit(self, name):
        mechanism = get_attention(name)
        if mechanism.needs_grid and self.heuristic != "none":
            return "needs the whole grid of patches: set heuristic='none'"
        if mechanism.needs_grid and self.routing == "tokens":
            return "needs the whole grid of patches: set routing to 'none'"
        if not mechanism.per_head and self.routing == "heads":
            return "has no heads to choose from: set routing to 'none' or 'tokens'"
        if not mechanism.has_weights() and self.attention_sparsity != "none":
            return "has no attention weights to make sparse: set attention_sparsity='none'"
        return super().misfit(name)
