"""Models that the section `model` of a run asks for."""

import pytest
import torch
from transformers import AutoModelForImageClassification as Auto

from hf_efficient.training.build_model import build_config, build_model
from hf_efficient.training.errors import RunError


def test_facts_fill_in_what_the_config_has():
    section = {"model_type": "hugginggreen_vit", "image_size": 32}
    names = {"id2label": {0: "cat", 1: "dog"}, "label2id": {"cat": 0, "dog": 1}}
    facts = {"num_labels": 2, **names, "image_mean": [0.1] * 3}
    config = build_config(section, **facts)
    assert config.num_labels == 2 and config.id2label == {0: "cat", 1: "dog"} and config.image_mean == [0.1] * 3
    assert not hasattr(build_config({"model_type": "vit"}, **facts), "image_mean")
    assert build_config({**section, "image_mean": 0.7}, **facts).image_mean == 0.7
    with pytest.raises(RunError, match=r"model.num_labels=3, but the dataset has 2"):
        build_config({**section, "num_labels": 3}, **facts)


@pytest.mark.parametrize("model_type", ["vit", "kerformer_vit"])
def test_models_are_built_by_type_and_from_a_folder(tmp_path, model_type):
    section = {
        **{"model_type": model_type, "image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1},
        **{"num_attention_heads": 2, "intermediate_size": 16},
    }
    first, second = (build_model(section, Auto, seed=3, num_labels=5) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    first.save_pretrained(tmp_path)
    again = build_model({"pretrained": str(tmp_path), "hidden_dropout_prob": 0.25}, Auto, seed=0, num_labels=5)
    assert again.config.hidden_dropout_prob == 0.25
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    other = build_model({"pretrained": str(tmp_path)}, Auto, seed=0, num_labels=7)
    assert other.classifier.weight.shape == (7, 16)


def test_a_backbone_is_frozen_where_it_can_be():
    tiny = {"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = build_model({"model_type": "hugginggreen_vit", "freeze_backbone": True, **tiny}, Auto, seed=0)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {
        "classifier.weight",
        "classifier.bias",
    }
    with pytest.raises(RunError, match="freeze_backbone"):
        build_model({"model_type": "vit", "freeze_backbone": True, **tiny}, Auto, seed=0)
