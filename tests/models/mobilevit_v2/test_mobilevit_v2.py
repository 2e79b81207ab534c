"""The model beside transformers' own, and beside its formulas."""

import copy

import pytest
import torch
from mobilevit_v2_cases import naive_block, stirred, theirs, tiny
from torch import nn
from transformers import MobileViTV2ForImageClassification, MobileViTV2ForSemanticSegmentation, MobileViTV2Model

from hf_efficient.attention import list_attentions
from hf_efficient.models.mobilevit_v2.configuration_mobilevit_v2 import MobileViTv2Config
from hf_efficient.models.mobilevit_v2.convolution import PointwiseConv2d
from hf_efficient.models.mobilevit_v2.modeling_mobilevit_v2 import (
    MobileViTv2Backbone,
    MobileViTv2ForImageClassification,
    MobileViTv2ForObjectDetection,
    MobileViTv2ForSemanticSegmentation,
    MobileViTv2Model,
)
from hf_efficient.models.mobilevit_v2.tokens import fold, unfold

PAIRS = [
    (MobileViTv2Model, MobileViTV2Model),
    (MobileViTv2ForImageClassification, MobileViTV2ForImageClassification),
    (MobileViTv2ForSemanticSegmentation, MobileViTV2ForSemanticSegmentation),
]
pairs = pytest.mark.parametrize(("ours", "native"), PAIRS, ids=["model", "classification", "segmentation"])


def main_output(model, pixel_values):
    with torch.no_grad():
        output = model(pixel_values)
    return output.logits if "logits" in output else output.last_hidden_state


def num_parameters(model_class, **fields) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in model_class(MobileViTv2Config(**fields)).parameters())


# Sizes.


@pytest.mark.parametrize(
    ("width", "count"),
    [
        (0.5, 1_370_593),
        (0.75, 2_866_009),
        (1.0, 4_901_841),
        (1.25, 7_478_089),
        (1.5, 10_594_753),
        (1.75, 14_251_833),
        (2.0, 18_449_329),
    ],
)
def test_parameters_of_the_paper(width, count):
    assert num_parameters(MobileViTv2ForImageClassification, width_multiplier=width, num_labels=1000) == count


@pytest.mark.parametrize(
    ("head", "width", "millions"),
    [("pspnet", 0.5, 3.617), ("pspnet", 1.75, 22.495), ("deeplabv3", 0.75, 9.576), ("deeplabv3", 2.0, 34.022)],
)
def test_parameters_of_segmentation(head, width, millions):
    fields = {"segmentation_head": head, "output_stride": 8, "num_labels": 150}
    count = num_parameters(MobileViTv2ForSemanticSegmentation, width_multiplier=width, **fields)
    assert round(count / 1e6, 3) == millions


@pytest.mark.parametrize(("width", "millions"), [(0.5, 2.035), (0.75, 3.585), (1.75, 14.923)])
def test_parameters_of_detection(width, millions):
    count = num_parameters(MobileViTv2ForObjectDetection, width_multiplier=width, num_labels=80)
    assert round(count / 1e6, 3) == millions


# transformers' checkpoints.


@pairs
@pytest.mark.parametrize("size", [(64, 64), (64, 128)])
def test_loads_checkpoints_of_transformers(ours, native, size, tmp_path):
    model = theirs(native)
    model.save_pretrained(tmp_path)
    loaded, info = ours.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    pixel_values = torch.randn(2, 3, *size)
    torch.testing.assert_close(
        main_output(loaded, pixel_values), main_output(model, pixel_values), atol=1e-4, rtol=1e-4
    )


@pairs
def test_transformers_loads_our_checkpoints(ours, native, tmp_path):
    model = stirred(ours(tiny()))
    model.save_pretrained(tmp_path)
    loaded, info = native.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    pixel_values = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(
        main_output(loaded, pixel_values), main_output(model, pixel_values), atol=1e-4, rtol=1e-4
    )


def test_the_paper_s_smallest_equals_transformers():
    native = theirs(
        MobileViTV2ForImageClassification,
        width_multiplier=0.5,
        n_attn_blocks=[2, 4, 3],
        base_attn_unit_dims=[128, 192, 256],
        num_labels=1000,
    )
    ours = MobileViTv2ForImageClassification(MobileViTv2Config(width_multiplier=0.5, num_labels=1000)).eval()
    ours.load_state_dict(native.state_dict())
    pixel_values = torch.randn(1, 3, 128, 128)
    torch.testing.assert_close(
        main_output(ours, pixel_values), main_output(native, pixel_values), atol=1e-4, rtol=1e-4
    )


def test_gradients_equal_transformers():
    """In double precision: normalising by batches of two makes much of float32's rounding."""
    native = theirs(MobileViTV2ForImageClassification).train().double()
    ours = MobileViTv2ForImageClassification(tiny()).double()
    ours.load_state_dict(native.state_dict())
    batch = {"pixel_values": torch.randn(2, 3, 64, 64).double(), "labels": torch.tensor([1, 3])}
    for model in (native, ours):
        model(**batch).loss.backward()
    for (name, p), q in zip(native.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, atol=1e-9, rtol=1e-7, msg=name)
    for (name, p), q in zip(native.named_buffers(), ours.buffers(), strict=True):
        torch.testing.assert_close(q, p, atol=1e-9, rtol=1e-7, msg=name)


@pytest.mark.parametrize("size", [(96, 96), (100, 72), (224, 160)])
def test_odd_maps_as_in_transformers(size):
    native = theirs(MobileViTV2ForImageClassification)
    ours = MobileViTv2ForImageClassification(tiny(odd_map="hf")).eval()
    ours.load_state_dict(native.state_dict())
    pixel_values = torch.randn(2, 3, *size)
    torch.testing.assert_close(
        main_output(ours, pixel_values), main_output(native, pixel_values), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("output_stride", [8, 16])
def test_dilation(output_stride, tmp_path):
    """Checkpoints of transformers behave as there; a config of ours dilates `conv_kxk` as the authors do."""
    native = theirs(MobileViTV2ForSemanticSegmentation, output_stride=output_stride)
    native.save_pretrained(tmp_path)
    pixel_values = torch.randn(1, 3, 64, 64)
    expected = main_output(native, pixel_values)
    loaded = MobileViTv2ForSemanticSegmentation.from_pretrained(tmp_path)
    torch.testing.assert_close(main_output(loaded, pixel_values), expected, atol=1e-4, rtol=1e-4)
    ours = MobileViTv2ForSemanticSegmentation(tiny(output_stride=output_stride)).eval()
    ours.load_state_dict(native.state_dict())
    dilations = [stage.conv_kxk.convolution.dilation[0] for stage in ours.mobilevitv2.encoder.layer[2:]]
    assert dilations == {8: [1, 2, 4], 16: [1, 1, 2]}[output_stride]
    assert main_output(ours, pixel_values).shape == expected.shape == (1, 5, 64 // output_stride, 64 // output_stride)
    assert (main_output(ours, pixel_values) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("output_stride", [8, 16])
def test_small_images_need_no_dilation(output_stride):
    model = MobileViTv2Model(tiny(output_stride=output_stride, dilate=False)).eval()
    assert {x.dilation for x in model.modules() if isinstance(x, nn.Conv2d)} == {(1, 1)}
    assert model(torch.randn(1, 3, 64, 64)).last_hidden_state.shape[2:] == (64 // output_stride, 64 // output_stride)


# The block.


@pytest.mark.parametrize("latent", [1, 4])
def test_block_is_its_formula(latent):
    stage = stirred(MobileViTv2Model(tiny(num_latent_tokens=latent))).encoder.layer[3].double()
    features = torch.randn(2, 64, 12, 8, dtype=torch.float64, requires_grad=True)
    stage.downsampling_layer = nn.Identity()
    stage.conv_kxk.convolution = nn.Conv2d(64, 96, 1).double()
    fast, slow = stage(features), naive_block(stage, features, latent)
    torch.testing.assert_close(fast, slow, atol=1e-10, rtol=1e-10)
    cotangent, leaves = torch.randn_like(fast), [features, *stage.parameters()]
    for x, y in zip(
        torch.autograd.grad(fast, leaves, cotangent), torch.autograd.grad(slow, leaves, cotangent), strict=True
    ):
        torch.testing.assert_close(x, y, atol=1e-9, rtol=1e-9)


def test_odd_maps_are_resized_as_in_cvnets():
    stage = stirred(MobileViTv2Model(tiny())).encoder.layer[3]
    features = torch.randn(2, 64, 14, 9)
    halved = stage.downsampling_layer(features)  # 7 x 5
    resized = nn.functional.interpolate(halved, size=(8, 6), mode="bilinear", align_corners=True)
    output = stage(features)
    assert output.shape[2:] == (8, 6)
    torch.testing.assert_close(output, naive_block(stage, resized), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("patch", [(2, 2), (1, 3)])
def test_fold_undoes_unfold(patch):
    features = torch.randn(2, 5, 4, 6)
    tokens, grid = unfold(features, patch)
    assert tokens.shape == (2, patch[0] * patch[1], grid[0] * grid[1], 5)
    assert torch.equal(fold(tokens, grid, patch), features)
    unfolded = nn.functional.unfold(features, patch, stride=patch).reshape(2, 5, patch[0] * patch[1], -1)
    assert torch.equal(tokens.permute(0, 3, 1, 2), unfolded)


class LowRank(nn.Module):
    """What an adapter puts around a convolution."""

    def __init__(self, base: nn.Conv2d, rank: int = 2):
        super().__init__()
        self.base = base
        self.down = nn.Conv2d(base.in_channels, rank, 1, bias=False)
        self.up = nn.Conv2d(rank, base.out_channels, 1, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))

    def merged(self) -> nn.Conv2d:
        merged = copy.deepcopy(self.base)
        merged.weight.data += (self.up.weight.flatten(1) @ self.down.weight.flatten(1)).view_as(merged.weight)
        return merged


@pytest.mark.parametrize("latent", [1, 2])
def test_adapters_around_the_projections_are_seen(latent):
    model = stirred(MobileViTv2ForImageClassification(tiny(num_latent_tokens=latent)))
    merged, pixel_values = copy.deepcopy(model), torch.randn(2, 3, 64, 64)
    before = main_output(model, pixel_values)
    names = [name for name, m in model.named_modules() if isinstance(m, PointwiseConv2d) and m.bias is not None]
    assert any("qkv_proj" in name for name in names)
    for name in names:
        adapter = LowRank(model.get_submodule(name))
        model.set_submodule(name, adapter)
        merged.set_submodule(name, adapter.merged())
    adapted = model(pixel_values).logits
    torch.testing.assert_close(adapted, main_output(merged, pixel_values), atol=1e-4, rtol=1e-4)
    assert (adapted - before).abs().max() > 1e-2
    adapted.sum().backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if ".up." in name or ".down." in name)


def test_hooks_on_the_projections_fire():
    model, seen = stirred(MobileViTv2Model(tiny())), []
    hooked = model.encoder.layer[2].transformer.layer[0].attention.qkv_proj.convolution
    hooked.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    model(torch.randn(1, 3, 64, 64))
    assert seen == [(1, 2 * 16 + 1, 4, 16)]


# Other mechanisms.


@pytest.mark.parametrize("attention", [name for name in list_attentions() if name != "separable"])
def test_other_mechanisms(attention):
    model = MobileViTv2ForImageClassification(tiny(attention=attention, num_attention_heads=2)).eval()
    layers = [layer for stage in model.mobilevitv2.encoder.layer[2:] for layer in stage.transformer.layer]
    assert {layer.attention.name for layer in layers} == {attention}
    assert [layer.attention.layer_idx for layer in layers] == [0, 1, 2, 3]
    tokens = torch.randn(2, 4, 16, 16)
    together = layers[0].attend(tokens, (4, 4), False)
    for b in range(2):
        for p in range(4):
            alone = layers[0].attention(tokens[b, p][None], grid=(4, 4)).hidden_states[0]
            torch.testing.assert_close(together[b, p], alone, atol=1e-5, rtol=1e-4)
    model.train()(torch.randn(2, 3, 64, 64), labels=torch.tensor([0, 4])).loss.backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None]
    assert not idle, idle
    model.eval()
    for size in ((96, 128), (50, 70)):  # tables are resampled
        assert torch.isfinite(main_output(model, torch.randn(1, 3, *size))).all()


def test_linformer_has_a_table_for_every_patch():
    model = MobileViTv2Model(tiny(attention="linformer", image_size=(64, 128)))
    lengths = [stage.transformer.layer[0].attention.max_length for stage in model.encoder.layer[2:]]
    assert lengths == [32, 8, 2]


# Outputs.


def test_first_logits_have_a_sane_scale():
    """transformers' start at 6e-4, from BatchNorms around 0."""
    model = MobileViTv2ForImageClassification(MobileViTv2Config(width_multiplier=0.5, num_labels=100))
    for mode in (True, False):
        logits = model.train(mode)(torch.randn(4, 3, 64, 64)).logits
        assert 0.02 < logits.std() < 3
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.weight))


def test_context_scores_are_shown():
    model = stirred(MobileViTv2ForImageClassification(tiny(num_latent_tokens=2)))
    pixel_values = torch.randn(2, 3, 64, 128)
    output = model(pixel_values, output_attentions=True)
    assert [tuple(x.shape) for x in output.attentions] == [(2, 2, 8, 16), (2, 2, 4, 8), (2, 2, 4, 8), (2, 2, 2, 4)]
    for scores in output.attentions:
        tokens, _ = unfold(scores, (2, 2))  # (B, P, N, L)
        torch.testing.assert_close(tokens.sum(2), torch.ones(2, 4, 2))
    assert model(pixel_values).attentions is None
    torch.testing.assert_close(output.logits, model(pixel_values).logits)


def test_weights_of_other_mechanisms_are_shown():
    model = MobileViTv2Model(tiny(attention="softmax", num_attention_heads=2)).eval()
    shapes = [tuple(x.shape) for x in model(torch.randn(2, 3, 64, 64), output_attentions=True).attentions]
    assert shapes == [(8, 2, 16, 16), (8, 2, 4, 4), (8, 2, 4, 4), (8, 2, 1, 1)]


def test_hidden_states_are_the_stages():
    native, pixel_values = theirs(MobileViTV2Model), torch.randn(1, 3, 64, 64)
    ours = MobileViTv2Model(tiny()).eval()
    ours.load_state_dict(native.state_dict())
    expected = native(pixel_values, output_hidden_states=True).hidden_states
    found = ours(pixel_values, output_hidden_states=True).hidden_states
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4)


def test_backbone(tmp_path):
    classifier = stirred(MobileViTv2ForImageClassification(tiny()))
    classifier.save_pretrained(tmp_path)
    pixel_values = torch.randn(2, 3, 64, 96)
    backbone = MobileViTv2Backbone.from_pretrained(tmp_path, out_features=["stem", "stage3", "stage5"])
    output = backbone(pixel_values)
    assert [tuple(x.shape) for x in output.feature_maps] == [(2, 16, 32, 48), (2, 64, 8, 12), (2, 128, 2, 4)]
    assert backbone.channels == [16, 64, 128] and output.hidden_states is None
    features = classifier.mobilevitv2(pixel_values)
    torch.testing.assert_close(output.feature_maps[-1], features.last_hidden_state)
    assert len(backbone(pixel_values, output_hidden_states=True).hidden_states) == 6
    assert [tuple(x.shape[1:2]) for x in MobileViTv2Backbone(tiny())(pixel_values).feature_maps] == [(128,)]


def test_checkpointing_counts_a_batch_once():
    model = MobileViTv2ForImageClassification(tiny()).train()
    other = copy.deepcopy(model)
    other.gradient_checkpointing_enable()
    batch = {"pixel_values": torch.randn(2, 3, 64, 64), "labels": torch.tensor([1, 3])}
    for m in (model, other):
        m(**batch).loss.backward()
    for (name, x), y in zip(model.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(x, y), name
    for (name, p), q in zip(model.named_parameters(), other.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q[1].grad, msg=name)


# Bad input.


@pytest.mark.parametrize(
    ("pixel_values", "message"),
    [
        (None, "pixel_values is missing"),
        (torch.zeros(2, 1, 64, 64), r"must be \(batch, 3, height, width\), as num_channels=3; got \(2, 1, 64, 64\)"),
        (torch.zeros(3, 64, 64), "must be"),
        (torch.zeros(1, 3, 0, 64), "is empty"),
        (torch.zeros(0, 3, 64, 64), "is empty"),
    ],
)
def test_wrong_images_are_named(pixel_values, message):
    with pytest.raises(ValueError, match=message):
        MobileViTv2Model(tiny()).eval()(pixel_values)


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (33, 65), (7, 200)])
def test_images_of_any_size(size):
    model = stirred(MobileViTv2ForImageClassification(tiny()))
    assert torch.isfinite(main_output(model, torch.randn(1, 3, *size))).all()


def test_images_too_small_for_a_patch_are_named():
    with pytest.raises(ValueError, match="pixel_values are too small: a map of"):
        MobileViTv2Model(tiny(odd_map="hf")).eval()(torch.randn(1, 3, 32, 64))
