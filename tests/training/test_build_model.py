"""Models that the section `model` of a run asks for."""

import pytest
import torch
from transformers import AutoModelForImageClassification as Auto
from transformers import AutoModelForObjectDetection, AutoModelForSemanticSegmentation
from transformers.utils import logging

from hf_efficient import image_processor_for
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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_channels": 4}, "model.num_channels=4 must be 3"),
        ({"id2label": {0: "cat"}}, r"model.len\(id2label\)=1, but the dataset has 2"),
        ({"id2label": 3}, "model.id2label=3 must be a mapping"),
        ({"problem_type": "guess"}, "model.problem_type='guess' must be single_label_classification"),
    ],
)
@pytest.mark.parametrize("model_type", ["vit", "kerformer_vit"])
def test_what_does_not_fit_the_data_is_named(model_type, fields, message):
    with pytest.raises(RunError, match=message):
        build_config({"model_type": model_type, **fields}, num_labels=2, image_mean=[0.1] * 3)


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


TINY = {"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
TINY["intermediate_size"] = 16


@pytest.fixture
def vit(tmp_path):
    build_model({"model_type": "vit", **TINY}, Auto, seed=1, num_labels=5).save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("model_type", ["kerformer_vit", "hugginggreen_vit"])
def test_the_type_goes_before_that_of_the_pretrained_weights(vit, model_type):
    """As in Python: the class that is asked for, with the weights that are there."""
    section = {"model_type": model_type, "attention": "softmax", "pretrained": vit}
    model = build_model(section, Auto, seed=0, num_labels=7)
    expected = type(model).from_pretrained(vit, attention="softmax", num_labels=5)
    assert model.config.model_type == model_type and model.classifier.weight.shape == (7, 16)
    for (name, ours), (_, theirs) in zip(model.vit.named_parameters(), expected.vit.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    stored = Auto.from_pretrained(vit).vit
    assert torch.equal(model.vit.layernorm.weight, stored.layernorm.weight)
    assert torch.equal(next(model.vit.parameters()), next(expected.vit.parameters()))


def test_new_parts_of_a_backbone_start_anew_and_are_named(vit):
    with pytest.warns(UserWarning, match=r"\d+ weights that .* does not have start anew: vit\."):
        build_model({"model_type": "kerformer_vit", "attention": "kerformer", "pretrained": vit}, Auto, seed=0)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"intermediate_size": 32}, r"does not fit: vit\..* is \[16, 16\] there and \[32, 16\] here, and 2 more"),
        ({"image_size": 16}, r"does not fit: vit\.embeddings.position_embeddings is \[1, 5, 16\] there"),
        ({"model_type": "mobilevit_v2", "image_size": 32}, "holds none of the weights of a mobilevit_v2"),
    ],
)
@pytest.mark.parametrize("classes", [5, 7])
def test_a_backbone_that_does_not_fit_is_an_error(vit, section, message, classes):
    """Whatever the number of classes, which lets the head start anew."""
    with pytest.raises(RunError, match=message):
        build_model({"pretrained": vit, **section}, Auto, seed=0, num_labels=classes)


@pytest.mark.parametrize(
    ("auto_class", "fields", "head"),
    [
        (AutoModelForSemanticSegmentation, {"output_stride": 8, "aspp_out_channels": 8}, "segmentation_head"),
        (AutoModelForObjectDetection, {"output_stride": 32}, "detection_head"),
    ],
)
def test_the_backbone_of_a_classifier_serves_dense_tasks(tmp_path, caplog, request, auto_class, fields, head):
    """Whatever its classes, its image size and its output stride."""
    logging.add_handler(caplog.handler)
    request.addfinalizer(lambda: logging.remove_handler(caplog.handler))
    tiny = {"width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1], "dilate": False}
    section = {"model_type": "mobilevit_v2", "image_size": 32, "output_stride": 16, **tiny}
    stored = build_model(section, Auto, seed=1, num_labels=9, image_mean=[0.1] * 3)
    stored.save_pretrained(tmp_path)
    section = {"model_type": "mobilevit_v2", "image_size": [48, 64], "pretrained": str(tmp_path), **fields}
    names = {"id2label": {0: "sky", 1: "road"}, "label2id": {"sky": 0, "road": 1}}
    model = build_model(section, auto_class, seed=0, num_labels=2, image_mean=[0.7] * 3, **names)
    loaded = model.mobilevitv2.state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in stored.mobilevitv2.state_dict().items())
    config = model.config
    assert config.output_stride == fields["output_stride"] and config.image_size == [48, 64]
    assert config.id2label == names["id2label"] and config.num_labels == 2
    assert image_processor_for(config, image_mean=[0.7] * 3).size == {"height": 48, "width": 64}
    kept = sum(x.numel() for x in stored.mobilevitv2.parameters())
    new = sum(x.numel() for x in model.get_submodule(head).parameters())
    assert model.weights_from == f"{kept:,} parameters from {tmp_path}, {new:,} start anew: {head}"
    assert not caplog.records  # of transformers, about every weight


def test_a_model_that_cannot_become_another_is_an_error(tmp_path):
    build_model({"model_type": "kerformer_vit", **TINY}, Auto, seed=1).save_pretrained(tmp_path)
    with pytest.raises(RunError, match="is a kerformer_vit: it can't become a vit"):
        build_model({"model_type": "vit", "pretrained": str(tmp_path)}, Auto, seed=0)


def test_a_backbone_is_frozen_where_it_can_be():
    tiny = {"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = build_model({"model_type": "hugginggreen_vit", "freeze_backbone": True, **tiny}, Auto, seed=0)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {
        "classifier.weight",
        "classifier.bias",
    }
    with pytest.raises(RunError, match="freeze_backbone"):
        build_model({"model_type": "vit", "freeze_backbone": True, **tiny}, Auto, seed=0)
