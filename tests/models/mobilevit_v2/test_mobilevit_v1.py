"""The first version's block: transformers' MobileViT beside ours, Table 1 of the second's paper, and its sampling."""

from pathlib import Path

import pytest
import torch
import yaml
from mobilevit_v2_cases import stirred
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoConfig,
    MobileViTConfig,
    MobileViTForImageClassification,
    MobileViTForSemanticSegmentation,
    MobileViTModel,
)

from hf_efficient import (
    MobileViTv2Config,
    MobileViTv2ForImageClassification,
    MobileViTv2ForObjectDetection,
    MobileViTv2ForSemanticSegmentation,
    MobileViTv2Model,
)
from hf_efficient.models.mobilevit_v2.modeling_mobilevit_v2 import MobileViTv2Backbone
from hf_efficient.models.mobilevit_v2.sampling import TokenSampling, enlarge

CONFIGS = Path(__file__).parents[3] / "configs"
SIZES = {
    **{"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 40], "num_attention_heads": 2},
    **{"image_size": 64, "aspp_out_channels": 16, "num_labels": 5},
}
PAIRS = [
    (MobileViTv2Model, MobileViTModel),
    (MobileViTv2ForImageClassification, MobileViTForImageClassification),
    (MobileViTv2ForSemanticSegmentation, MobileViTForSemanticSegmentation),
]
pairs = pytest.mark.parametrize(("ours", "native"), PAIRS, ids=["model", "classification", "segmentation"])
every_sampling = pytest.mark.parametrize(
    ("of", "method"), [(of, method) for of in ("pixels", "patches") for method in ("uniform", "random", "top")]
)


def main_output(model, pixel_values):
    with torch.no_grad():
        output = model(pixel_values)
    return output.logits if "logits" in output else output.last_hidden_state


def theirs(model_class, **fields):
    return stirred(model_class(MobileViTConfig(**{**SIZES, **fields})))


def tiny(**fields) -> MobileViTv2Config:
    return MobileViTv2Config(**{"block": "v1", "attention": "softmax", **SIZES, **fields})


# transformers' checkpoints.


@pairs
def test_loads_checkpoints_of_transformers(ours, native, tmp_path):
    model = theirs(native)
    model.save_pretrained(tmp_path)
    loaded, info = ours.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert loaded.config.block == "v1" and loaded.config.model_type == "mobilevit_v2"
    for size in ((64, 64), (64, 128), (100, 72)):  # the last leaves odd maps
        pixels = torch.randn(2, 3, *size)
        expected = main_output(model, pixels)
        torch.testing.assert_close(main_output(loaded, pixels), expected, atol=1e-4, rtol=1e-4)
    loaded.save_pretrained(tmp_path / "ours")
    again = ours.from_pretrained(tmp_path / "ours")
    assert torch.equal(main_output(again, pixels), main_output(loaded, pixels))


@pytest.mark.parametrize(
    "fields", [{"qkv_bias": False}, {"output_stride": 8}, {"expand_ratio": 2.0, "mlp_ratio": 1.5}], ids=str
)
def test_their_fields_are_read(fields, tmp_path):
    model = theirs(MobileViTForImageClassification, **fields)
    model.save_pretrained(tmp_path)
    loaded, info = MobileViTv2ForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    pixels = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(main_output(loaded, pixels), main_output(model, pixels), atol=1e-4, rtol=1e-4)


def test_defaults_of_their_file_are_theirs(tmp_path):
    MobileViTConfig(num_labels=3, id2label={0: "a", 1: "b", 2: "c"}).save_pretrained(tmp_path)
    config = MobileViTv2Config.from_pretrained(tmp_path)
    expected = MobileViTv2Config.from_preset("v1_s", id2label={0: "a", 1: "b", 2: "c"})
    assert (config.stage_widths, config.attention_widths) == (expected.stage_widths, expected.attention_widths)
    assert (config.expand_ratio, config.hidden_dropout_prob, config.aspp_out_channels) == (4.0, 0.1, 256)
    assert config.id2label == {0: "a", 1: "b", 2: "c"} and config.pooled_width == 640
    assert type(AutoConfig.from_pretrained(tmp_path)) is MobileViTConfig  # which stays transformers' own


@pytest.mark.parametrize(("name", "count"), [("v1_xxs", 1_272_024), ("v1_xs", 2_317_848), ("v1_s", 5_578_632)])
def test_parameters_of_the_three_sizes(name, count):
    with torch.device("meta"):
        model = MobileViTv2ForImageClassification(MobileViTv2Config.from_preset(name, num_labels=1000))
        sizes = {key: model.config.to_dict()[key] for key in ("hidden_sizes", "neck_hidden_sizes", "expand_ratio")}
        native = MobileViTForImageClassification(MobileViTConfig(**sizes, num_labels=1000))
    assert model.num_parameters() == native.num_parameters() == count


def test_gradients_equal_transformers(tmp_path):
    native = theirs(MobileViTForImageClassification, hidden_dropout_prob=0.0, classifier_dropout_prob=0.0)
    native.save_pretrained(tmp_path)
    ours = MobileViTv2ForImageClassification.from_pretrained(tmp_path)
    batch = {"pixel_values": torch.randn(2, 3, 64, 64).double(), "labels": torch.tensor([1, 3])}
    for model in (native, ours):
        model.double().train()(**batch).loss.backward()
    for (name, p), q in zip(native.named_parameters(), sorted_like(native, ours), strict=True):
        torch.testing.assert_close(q.grad, p.grad, atol=1e-9, rtol=1e-7, msg=name)


def sorted_like(native, ours):
    """Our parameters in the order of theirs: equal values tell which is which."""
    left = list(ours.parameters())
    for p in native.parameters():
        index = next(i for i, q in enumerate(left) if q.shape == p.shape and torch.equal(p, q))
        yield left.pop(index)


def test_other_heads_stand_on_it():
    pixels = torch.randn(1, 3, 64, 64)
    detector = stirred(MobileViTv2ForObjectDetection(tiny(ssd_suppression=False)))
    assert detector(pixels).logits.shape[2] == 6
    maps = MobileViTv2Backbone(tiny(out_features=["stage3", "stage5"])).eval()(pixels).feature_maps
    assert [tuple(x.shape) for x in maps] == [(1, 16, 8, 8), (1, 24, 2, 2)]
    fast = (model := stirred(MobileViTv2ForImageClassification(tiny()))).for_inference()
    torch.testing.assert_close(fast(pixels).logits, model(pixels).logits, atol=1e-4, rtol=1e-4)


# Table 1.


ROWS = {"softmax": "multi-head", "linformer": "linformer", "separable": "separable"}


def section(name: str) -> dict:
    return yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())


def test_table_1_differs_in_the_attention_unit_only():
    rows = {name: section(f"imagenet_mobilevit_v2_v1_{name}") for name in ROWS}
    for name, row in rows.items():
        assert row["model"].pop("attention") == name
    assert rows["softmax"] == rows["linformer"] == rows["separable"]
    sizes = {}
    for name in ROWS:
        fields = section(f"imagenet_mobilevit_v2_v1_{name}")["model"]
        with torch.device("meta"):
            config = AutoConfig.for_model(fields.pop("model_type"), num_labels=1000, **fields)
            sizes[name] = MobileViTv2ForImageClassification(config).num_parameters()
    assert sizes["softmax"] == 5_578_632
    assert all(abs(size / sizes["softmax"] - 1) < 0.1 for size in sizes.values()), sizes


@pytest.mark.parametrize("attention", ["linformer", "separable", "performer"])
def test_any_attention_learns_in_the_block(attention):
    model = MobileViTv2ForImageClassification(tiny(attention=attention)).train()
    model(torch.randn(2, 3, 64, 64), labels=torch.tensor([0, 4])).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


# Sampling.


def sampled(of, method, stride=2, **fields):
    return {"sampling": {"of": of, "method": method, "stride": stride}, **fields}


@every_sampling
@pytest.mark.parametrize("block", ["v1", "v2"])
def test_every_token_chosen_is_no_sampling(of, method, block):
    fields = {} if block == "v1" else {"hidden_sizes": None, "neck_hidden_sizes": None, "width_multiplier": 0.25}
    fields = {**fields, "block": block, "attention": "separable" if block == "v2" else "linformer"}
    fields["base_attn_unit_dims"] = [64, 64, 64]
    plain = stirred(MobileViTv2ForImageClassification(tiny(**fields)))
    model = MobileViTv2ForImageClassification(tiny(**sampled(of, method, 1, **fields))).eval()
    model.load_state_dict(plain.state_dict())
    for pixels in (torch.randn(2, 3, 64, 64), torch.randn(1, 3, 80, 96)):
        torch.testing.assert_close(model(pixels).logits, plain(pixels).logits, atol=1e-3, rtol=1e-3)


@every_sampling
def test_only_what_is_chosen_goes_through_the_layers(of, method):
    sampling = TokenSampling(of, method, 2, (2, 2)).train()
    tokens = torch.randn(3, 4, 5 * 6, 7)
    chosen = sampling.choose(tokens, (5, 6))
    assert chosen.tokens.shape == ((3, 1, 30, 7) if of == "pixels" else (3, 4, 9, 7))
    assert torch.equal(sampling.spread(tokens, (5, 6), chosen, chosen.tokens), tokens)  # nothing was changed
    everywhere = sampling.spread(tokens, (5, 6), chosen, chosen.tokens + 1) - tokens
    if method == "uniform":  # a constant change is one everywhere
        torch.testing.assert_close(everywhere, torch.ones_like(tokens))
    else:
        assert set(everywhere.round(decimals=4).unique().tolist()) == {0.0, 1.0}
        assert everywhere.mean().item() == pytest.approx(chosen.tokens.numel() / tokens.numel())


def test_top_takes_the_largest():
    tokens = torch.randn(2, 4, 6, 5)
    norms = tokens.norm(dim=-1)
    chosen = TokenSampling("pixels", "top", 2, (2, 2)).choose(tokens, (2, 3))
    torch.testing.assert_close(chosen.tokens.norm(dim=-1)[:, 0], norms.amax(1))
    chosen = TokenSampling("patches", "top", 2, (2, 2)).choose(tokens, (2, 3))
    best = norms.square().sum(1).topk(2).indices.sort(1).values
    assert torch.equal(chosen.position_ids, best)
    torch.testing.assert_close(chosen.tokens, torch.stack([x[:, i] for x, i in zip(tokens, best, strict=True)]))


def test_random_is_even_in_evaluation():
    sampling, tokens = TokenSampling("patches", "random", 2, (2, 2)), torch.randn(2, 4, 16, 5)
    assert sampling.eval().choose(tokens, (4, 4)).position_ids.tolist() == [[0, 4, 8, 12]] * 2
    torch.manual_seed(0)
    drawn = [sampling.train().choose(tokens, (4, 4)).position_ids for _ in range(2)]
    assert not torch.equal(*drawn) and not torch.equal(drawn[0][0], drawn[0][1])


def test_samples_are_spread_bilinearly():
    rows, columns = torch.meshgrid(torch.arange(5.0), torch.arange(6.0), indexing="ij")
    plane = (2 * rows + 3 * columns)[None, None]
    whole = enlarge(plane[:, :, ::2, ::2], 2, (5, 6))
    assert whole.shape == plane.shape
    torch.testing.assert_close(whole[:, :, :5, :5], plane[:, :, :5, :5])  # exact on a plane, up to the last sample
    torch.testing.assert_close(whole[..., 5], whole[..., 4])


@every_sampling
@pytest.mark.parametrize("attention", ["softmax", "linformer", "separable"])
def test_sampled_models_learn_and_take_other_sizes(of, method, attention):
    model = MobileViTv2ForImageClassification(tiny(**sampled(of, method, attention=attention))).train()
    model(torch.randn(2, 3, 64, 64), labels=torch.tensor([0, 4])).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    with torch.no_grad():
        assert model.eval()(torch.randn(1, 3, 96, 80)).logits.isfinite().all()  # tables are resampled


def flops(name: str) -> int:
    fields = section(name)["model"]
    config = AutoConfig.for_model(fields.pop("model_type"), num_labels=1000, **{**fields, "image_size": 256})
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        MobileViTv2ForImageClassification(config).eval()(torch.empty(1, 3, 256, 256))
    return counter.get_total_flops()


def test_sampling_saves_what_the_paper_says():
    """ "These methods can reduce the FLOPs by 1.2× to 1.6×"."""
    whole = flops("imagenet_mobilevit_v2")
    for variant in ("pixel_sampling", "patch_sampling"):
        assert 1.2 < whole / flops(f"imagenet_mobilevit_v2_{variant}") < 1.75


@pytest.mark.parametrize("method", ["uniform", "top"])
def test_maps_of_context_scores(method):
    config = tiny(**sampled("pixels", method, attention="separable"))
    model = MobileViTv2Model(config).eval()
    if method == "top":
        with pytest.raises(ValueError, match=r"sampling\.method='top' chooses make no map"):
            model(torch.randn(1, 3, 64, 64), output_attentions=True)
    else:
        shapes = [tuple(x.shape) for x in model(torch.randn(1, 3, 64, 64), output_attentions=True).attentions]
        assert shapes[0] == (1, 1, 4, 4)  # every second pixel of 8 x 8


# Bad input.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block": "v3"}, "block='v3' must be one of v1, v2"),
        ({"hidden_sizes": [1, 2, 3]}, r"hidden_sizes=\[1, 2, 3\] needs block='v1'"),
        ({"block": "v1", "hidden_sizes": [64, 80]}, r"hidden_sizes=\[64, 80\] must be 3 positive integers"),
        ({"block": "v1", "neck_hidden_sizes": [8] * 6}, "neck_hidden_sizes=.* must be 7 positive integers"),
        ({"block": "v1", "width_multiplier": 0.5}, "width_multiplier=0.5 is for block='v2'"),
        ({"sampling": {"of": "pixels"}}, "must have exactly the keys of, method, stride"),
        (sampled("tokens", "uniform"), "sampling.of='tokens' must be one of 'pixels', 'patches'"),
        (sampled("pixels", "best"), "sampling.method='best' must be one of 'uniform', 'random', 'top'"),
        (sampled("pixels", "uniform", 0), "sampling.stride=0 must be a positive integer"),
        (sampled("pixels", "uniform", 3), "sampling.stride=3 must divide patch_size=2"),
        (sampled("patches", "top", attention="axial"), "attention='axial' needs a grid of patches"),
    ],
)
def test_a_wrong_field_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        MobileViTv2Config(**fields)
