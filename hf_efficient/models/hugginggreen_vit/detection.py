"""What turns patch features into objects: learned queries, one layer of cross-attention, and two small predictors.

A query head, rather than detection tokens inside the ViT (YOLOS), lets a frozen backbone go without a backward pass.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from ...layers.block import MLP
from .configuration_hugginggreen_vit import HuggingGreenViTConfig


class CrossAttention(nn.Module):
    """softmax(q kᵀ / √D) v, queries from one sequence, keys and values from another."""

    def __init__(self, hidden_size: int, num_heads: int, head_dim: int):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim)
        self.k_proj = nn.Linear(hidden_size, num_heads * head_dim)
        self.v_proj = nn.Linear(hidden_size, num_heads * head_dim)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size)

    def forward(self, queries: Tensor, features: Tensor) -> Tensor:
        """(B, Q, d), (B, N, d) -> (B, Q, d)"""
        q, k, v = self.q_proj(queries), self.k_proj(features), self.v_proj(features)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))  # (B, H, ·, D)
        return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class QueryDecoder(nn.Module):
    """Q learned queries that look at the patches once: pre-norm cross-attention and MLP."""

    def __init__(self, config: HuggingGreenViTConfig):
        super().__init__()
        dim, eps, heads = config.hidden_size, config.layer_norm_eps, config.num_attention_heads
        self.queries = nn.Parameter(torch.empty(config.num_queries, dim))
        self.layernorm_before = nn.LayerNorm(dim, eps=eps)
        self.cross_attention = CrossAttention(dim, heads, config.head_dim or dim // heads)
        self.layernorm_after = nn.LayerNorm(dim, eps=eps)
        self.mlp = MLP(dim, config.intermediate_size, config.hidden_act)
        self.layernorm = nn.LayerNorm(dim, eps=eps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.normal_(self.queries, std=0.02)
        reset_linears(self)

    def forward(self, features: Tensor) -> Tensor:
        """Patch features (B, n, d) -> (B, Q, d)"""
        queries = self.queries.to(features.dtype).expand(features.shape[0], -1, -1)
        queries = queries + self.cross_attention(self.layernorm_before(queries), features)
        return self.layernorm(queries + self.mlp(self.layernorm_after(queries)))


class Predictor(nn.Sequential):
    """Three linear layers with ReLU between them."""

    def __init__(self, hidden_size: int, outputs: int):
        sizes = (hidden_size, hidden_size, hidden_size, outputs)
        layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
        super().__init__(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        reset_linears(self)


def reset_linears(module: nn.Module) -> None:
    """Xavier's initialisation, as in DETR: from the small one of ViT, objects of a small model are learned slowly."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            init.xavier_uniform_(layer.weight)
            init.zeros_(layer.bias)


def check_objects(labels: list[dict[str, Tensor]], batch: int, num_labels: int) -> None:
    """Raises unless every image has `class_labels` (objects,) and `boxes` (objects, 4), cx, cy, w, h in [0, 1]."""
    if isinstance(labels, Tensor | dict) or len(labels) != batch:
        raise ValueError(
            f"labels must be a list of {batch} dicts, one for each image, with 'class_labels' and 'boxes'."
        )
    for index, label in enumerate(labels):
        if missing := {"class_labels", "boxes"} - set(label):
            raise ValueError(f"labels[{index}] lacks {', '.join(sorted(missing))}; it has {', '.join(label)}.")
        classes, boxes = label["class_labels"], label["boxes"]
        if classes.dim() != 1 or classes.is_floating_point():
            raise ValueError(f"labels[{index}]['class_labels'] must be a list of integers, got {classes}.")
        if boxes.shape != (len(classes), 4):
            raise ValueError(
                f"labels[{index}]['boxes'] must be {(len(classes), 4)}, one box for each of class_labels, "
                f"got {tuple(boxes.shape)}."
            )
        wrong = classes[(classes < 0) | (classes >= num_labels)]
        if len(wrong):
            raise ValueError(
                f"labels[{index}]['class_labels'] holds {wrong[0].item()}, but the model has labels 0 to "
                f"{num_labels - 1}."
            )
        if not ((boxes >= 0) & (boxes <= 1)).all():
            raise ValueError(
                f"labels[{index}]['boxes'] must be (centre x, centre y, width, height) as shares of the image, "
                f"in [0, 1], got {boxes.tolist()}."
            )


def check_unpadded(pixel_mask: Tensor) -> None:
    if pixel_mask.device.type == "cpu" and not torch.compiler.is_compiling() and not pixel_mask.all():
        raise ValueError("pixel_mask marks padding: let the processor resize all images to one size={height, width}.")
