"""HuggingGreenViT's config: faults that name their field, and the paper's presets."""

from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoConfig

from hf_efficient import HuggingGreenViTConfig, HuggingGreenViTForImageClassification

CONFIGS = Path(__file__).parents[3] / "configs"
PRESETS = {path.stem.split("_vit_")[1]: path for path in CONFIGS.glob("*_hugginggreen_vit_*.yaml")}


def preset(name: str) -> HuggingGreenViTConfig:
    fields = yaml.safe_load(PRESETS[name].read_text())["model"]
    return AutoConfig.for_model(fields.pop("model_type"), **fields)


def count(config) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in HuggingGreenViTForImageClassification(config).parameters())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heuristic": "beauty"}, "heuristic='beauty' must be one of 'none', 'contrast', 'variance', 'entropy'"),
        ({"top_k": 197}, "top_k=197, but image_size=224 and patch_size=16 make only 196 patches"),
        ({"top_k": 0}, "top_k=0 must be positive"),
        ({"top_k": 1.5}, "top_k"),
        ({"probabilistic": "yes"}, "probabilistic"),
        ({"prob": 1.5}, r"prob=1.5 is a probability: it must lie in \[0, 1\]"),
        ({"prob": float("nan")}, "prob=nan"),
        ({"prob_decay_rate": -1.0}, "prob_decay_rate=-1.0"),
        ({"prob_schedule": "cosine"}, "prob_schedule='cosine' must be one of 'product'"),
        ({"image_mean": [0.5, 0.5]}, "image_mean=.* one value for each of num_channels=3"),
        ({"image_std": 0.0}, "image_std=0.0 must be positive"),
        ({"attention_sparsity": "l1"}, "attention_sparsity='l1'"),
        ({"attention_sparsity_weight": -1e-3}, "attention_sparsity_weight=-0.001"),
        ({"routing": "layers"}, "routing='layers'"),
        ({"routing_capacity": 0.0}, r"routing_capacity=0.0 is a share: it must lie in \(0, 1\]"),
        ({"routing_capacity": 2}, "routing_capacity=2"),
        ({"routing_balance_weight": -1}, "routing_balance_weight=-1"),
        ({"pooling": "max"}, "pooling='max' must be one of 'mean', 'cls'"),
        ({"pooling": "cls", "use_cls_token": False}, "pooling='cls' needs use_cls_token=True"),
        ({"mask_ratio": 1.0}, "mask_ratio=1.0"),
        ({"num_queries": 0}, "num_queries=0 must be positive"),
        ({"giou_cost": -2}, "giou_cost=-2"),
        ({"class_cost": 0, "bbox_cost": 0, "giou_cost": 0}, "class_cost, bbox_cost, giou_cost: at least one"),
        ({"auxiliary_loss": True}, "auxiliary_loss=True"),
        ({"attention": "axial", "use_cls_token": False}, "attention='axial' needs the whole grid .* heuristic='none'"),
        (
            {"attention": "window", "use_cls_token": False, "heuristic": "none", "routing": "tokens"},
            "attention='window' needs the whole grid of patches: set routing to 'none'",
        ),
        (
            {"attention": "fnet", "routing": "heads"},
            "attention='fnet' has no heads to choose from: .* Mechanisms that fit",
        ),
        (
            {"attention": "separable", "attention_sparsity": "entropy"},
            "attention='separable' has no attention weights to make sparse: set attention_sparsity='none'",
        ),
    ],
)
def test_faults_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        HuggingGreenViTConfig(**fields)


def test_fields_set_later_are_checked_when_a_model_is_built():
    config = HuggingGreenViTConfig(image_size=32, patch_size=8, hidden_size=24)
    config.image_size, config.top_k = 16, 16
    with pytest.raises(ValueError, match="top_k=16"):
        HuggingGreenViTForImageClassification(config)


def test_mechanisms_that_fit_after_all():
    HuggingGreenViTConfig(attention="window", use_cls_token=False, heuristic="none", routing="heads")
    HuggingGreenViTConfig(attention="fnet", routing="tokens")
    HuggingGreenViTConfig(attention="axial", use_cls_token=False, heuristic="none")


def test_normalisation_per_channel():
    assert HuggingGreenViTConfig(num_channels=1).normalisation() == ((0.5,), (0.5,))
    config = HuggingGreenViTConfig(image_mean=[0.1, 0.2, 0.3], image_std=(0.4, 0.5, 0.6))
    assert config.normalisation() == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_the_papers_presets_are_there():
    assert set(PRESETS) >= {"rq1", "rq2_4", "rq2_8", "rq2_12"}
    assert set(HuggingGreenViTConfig.presets) == {"rq1", "rq1_small", "rq2_4", "rq2_8", "rq2_12", "small"}


@pytest.mark.parametrize("name", ["rq1", "rq2_4", "rq2_8", "rq2_12", "small"])
def test_a_preset_is_the_model_of_its_run(name):
    file = PRESETS[name] if name != "small" else CONFIGS / "cifar10_hugginggreen_vit_small.yaml"
    fields = yaml.safe_load(file.read_text())["model"]
    run = AutoConfig.for_model(fields.pop("model_type"), **{**fields, "num_labels": 10})
    assert HuggingGreenViTConfig.from_preset(name, num_labels=10).to_dict() == run.to_dict()


def test_the_small_first_question_keeps_all_patches():
    config = HuggingGreenViTConfig.from_preset("rq1_small", num_labels=10)
    assert config.attention == "probabilistic" and config.heuristic == "none"
    assert count(config) < 1_000_000
    plain = HuggingGreenViTConfig.from_preset("rq1_small", attention="softmax", num_labels=10)
    assert count(config) - count(plain) == 4 * 4  # one precision for each head: nothing else differs


def test_an_unknown_preset_is_named():
    with pytest.raises(ValueError, match="unknown preset 'rq4'; known: rq1, rq1_small, rq2_4, rq2_8, rq2_12, small"):
        HuggingGreenViTConfig.from_preset("rq4")


@pytest.mark.parametrize("depth", [4, 8, 12])
def test_research_question_2(depth):
    config = preset(f"rq2_{depth}")
    assert config.hidden_size == 64 and config.head_dim == 64
    assert config.num_hidden_layers == config.num_attention_heads == depth
    assert (config.patch_size, config.image_size, config.top_k) == (16, 224, 138)
    assert (config.prob, config.prob_decay_rate, config.prob_schedule) == (0.5, 5e-3, "product")
    assert config.probabilistic and config.heuristic == "contrast" and config.attention == "probabilistic"
    training = yaml.safe_load(PRESETS[f"rq2_{depth}"].read_text())["training"]
    assert (training["learning_rate"], training["per_device_train_batch_size"]) == (1e-3, 512)
    assert training["lr_scheduler_type"] == "constant"  # "keeping fixed the learning rate"
    assert (
        training["num_train_epochs"] > 3 * training["early_stopping_patience"] > 0
    )  # so that prob falls, and it ends
    inner, d = 64 * depth, 64
    layer = 3 * (d * inner + inner) + inner * d + d + depth + 2 * 2 * d + 2 * d * 256 + 256 + d
    assert count(config) == depth * layer + 768 * d + d + d + 197 * d + 2 * d + d * 10 + 10


def test_research_question_1():
    config = preset("rq1")
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (3072, 16, 16)
    assert config.heuristic == "none" and not config.probabilistic and config.num_kept_patches == config.num_patches
    assert count(config) == pytest.approx(1.8e9, rel=0.02)
