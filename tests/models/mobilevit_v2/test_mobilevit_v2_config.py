import json

import pytest

from hf_efficient.attention import list_attentions
from hf_efficient.models.mobilevit_v2.configuration_mobilevit_v2 import MobileViTv2Config


def test_defaults_are_those_of_transformers():
    from transformers import MobileViTV2Config

    ours, own = MobileViTv2Config().to_dict(), {"model_type", "transformers_version"}
    for key, value in MobileViTV2Config().to_dict().items():
        assert key in own or ours[key] == value, key


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width_multiplier": 0}, "width_multiplier=0 must be positive"),
        ({"width_multiplier": "wide"}, "width_multiplier"),
        ({"output_stride": 4}, "output_stride=4 must be 8, 16 or 32"),
        ({"n_attn_blocks": [2, 4]}, r"n_attn_blocks=\[2, 4\] must be 3 positive integers"),
        ({"base_attn_unit_dims": [128, 0, 256]}, "base_attn_unit_dims"),
        ({"atrous_rates": [6]}, "atrous_rates"),
        ({"patch_size": 0}, "patch_size=0 must be a positive size"),
        ({"image_size": [64, 64, 64]}, "image_size"),
        ({"image_size": -32}, "image_size"),
        ({"conv_kernel_size": 4}, "conv_kernel_size=4 must be odd"),
        ({"attn_dropout": 1.0}, r"attn_dropout=1.0 must lie in \[0, 1\)"),
        ({"classifier_dropout_prob": -0.1}, "classifier_dropout_prob"),
        ({"hidden_act": "swoosh"}, "hidden_act='swoosh' is unknown"),
        ({"odd_map": "pad"}, "odd_map='pad' must be one of cvnets, hf"),
        ({"segmentation_head": "unet"}, "segmentation_head='unet' must be one of deeplabv3, pspnet"),
        ({"num_latent_tokens": 0}, "num_latent_tokens=0 must be positive"),
        ({"num_latent_tokens": 7}, "num_latent_tokens=7 must divide"),
        ({"num_latent_tokens": 2, "attention": "softmax"}, "num_latent_tokens=2 needs attention='separable'"),
        ({"attention": "softmax", "num_attention_heads": 7}, "num_attention_heads=7"),
        ({"attention": "nothing"}, "attention='nothing' is unknown"),
        ({"attention_options": {"bias": False}}, "attention_options"),
        ({"attention": "linformer", "attention_options": {"rank": 4}}, "attention_options has no 'rank'"),
        ({"ssd_channels": [512]}, "ssd_channels"),
        ({"ssd_aspect_ratios": [[2]] * 5}, "ssd_aspect_ratios"),
        ({"ssd_aspect_ratios": [2, 3, 2, 3, 2, 3]}, "ssd_aspect_ratios"),
        ({"ssd_variances": [0.1, 0]}, "ssd_variances"),
        ({"ssd_nms_threshold": 1.5}, "ssd_nms_threshold"),
        ({"psp_pool_sizes": []}, "psp_pool_sizes"),
        ({"auxiliary_loss_weight": -1}, "auxiliary_loss_weight"),
        ({"witdh_multiplier": 2.0}, "unknown key 'witdh_multiplier'; did you mean 'width_multiplier'"),
        ({"out_features": ["stage9"]}, "out_features"),
        ({"num_labels": 3, "id2label": {0: "a"}}, "num_labels=3, but id2label names 1"),
    ],
)
def test_a_wrong_field_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        MobileViTv2Config(**fields)


@pytest.mark.parametrize("attention", list_attentions())
def test_every_mechanism_fits(attention):
    assert MobileViTv2Config().misfit(attention) is None
    MobileViTv2Config(attention=attention)


def test_heads_that_do_not_divide_the_widths_are_a_misfit():
    config = MobileViTv2Config(num_attention_heads=7)
    assert "choose a common divisor" in config.misfit("softmax")
    assert config.misfit("separable") is None
    MobileViTv2Config(attention="softmax", num_attention_heads=7, attention_options={"head_dim": 16})


def test_latent_tokens_may_be_given_as_an_option():
    config = MobileViTv2Config(attention_options={"num_latent_tokens": 4})
    assert config.num_latent_tokens == 4 and config.attention_options == {}


@pytest.mark.parametrize(
    ("image_size", "odd_map", "output_stride", "grids"),
    [
        (256, "cvnets", 32, [(16, 16), (8, 8), (4, 4)]),
        (224, "cvnets", 32, [(14, 14), (7, 7), (4, 4)]),
        (224, "hf", 32, [(14, 14), (7, 7), (3, 3)]),
        ((64, 128), "cvnets", 8, [(4, 8), (4, 8), (4, 8)]),
        (256, "cvnets", 16, [(16, 16), (8, 8), (8, 8)]),
    ],
)
def test_patches_of_each_stage(image_size, odd_map, output_stride, grids):
    config = MobileViTv2Config(image_size=image_size, odd_map=odd_map, output_stride=output_stride)
    assert [config.grid(stage) for stage in (3, 4, 5)] == grids


@pytest.mark.parametrize(
    ("output_stride", "dilations"),
    [(32, ((1, 1), (1, 1), (1, 1))), (16, ((1, 1), (1, 1), (1, 2))), (8, ((1, 1), (1, 2), (2, 4)))],
)
def test_dilations_replace_strides(output_stride, dilations):
    assert MobileViTv2Config(output_stride=output_stride).dilations == dilations


def test_survives_json(tmp_path):
    config = MobileViTv2Config(
        width_multiplier=0.5, num_latent_tokens=2, odd_map="hf", out_features=["stage3", "stage5"], num_labels=7
    )
    config.save_pretrained(tmp_path)
    again = MobileViTv2Config.from_pretrained(tmp_path)
    assert json.loads(again.to_json_string()) == json.loads(config.to_json_string())
    assert again.out_indices == [3, 5]
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "mobilevit_v2"
