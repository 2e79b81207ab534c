import pytest
import torch
import torch.nn.functional as F
from mobilevit_v2_cases import stirred, tiny

from hf_efficient.models.mobilevit_v2.modeling_mobilevit_v2 import MobileViTv2ForSemanticSegmentation

heads = pytest.mark.parametrize("head", ["deeplabv3", "pspnet"])


def batch(size=64):
    labels = torch.randint(5, (2, size, size))
    labels[0, :9] = 255
    return {"pixel_values": torch.randn(2, 3, size, size), "labels": labels}


@heads
@pytest.mark.parametrize("output_stride", [8, 16, 32])
def test_logits_have_the_output_stride(head, output_stride):
    model = stirred(MobileViTv2ForSemanticSegmentation(tiny(segmentation_head=head, output_stride=output_stride)))
    logits = model(torch.randn(1, 3, 64, 128)).logits
    assert logits.shape == (1, 5, 64 // output_stride, 128 // output_stride)


def test_pspnet_is_its_formula():
    model = stirred(MobileViTv2ForSemanticSegmentation(tiny(segmentation_head="pspnet", output_stride=8)))
    head, features = model.segmentation_head, torch.randn(2, 128, 8, 8)
    pyramid = [features]
    for size, branch in zip((1, 2, 3, 6), head.branches, strict=True):
        cells = F.adaptive_avg_pool2d(features, size)
        reduced = branch.normalization(F.conv2d(cells, branch.convolution.weight)).relu()
        assert reduced.shape[1] == 32
        pyramid.append(F.interpolate(reduced, (8, 8), mode="bilinear", align_corners=True))
    fused = head.fusion.normalization(F.conv2d(torch.cat(pyramid, 1), head.fusion.convolution.weight, padding=1))
    last = head.classifier.convolution
    expected = F.conv2d(fused.relu(), last.weight, last.bias)
    torch.testing.assert_close(head(features), expected, atol=1e-4, rtol=1e-4)


@heads
def test_loss_is_the_mean_over_labelled_pixels(head):
    model, inputs = stirred(MobileViTv2ForSemanticSegmentation(tiny(segmentation_head=head))), batch()
    output = model(**inputs)
    logits = F.interpolate(output.logits, (64, 64), mode="bilinear", align_corners=False)
    torch.testing.assert_close(output.loss, F.cross_entropy(logits, inputs["labels"], ignore_index=255))
    counted = (inputs["labels"] != 255).sum()
    torch.testing.assert_close(model(**inputs, num_items_in_batch=4 * counted).loss, output.loss / 4)


def test_auxiliary_head_is_for_training_only():
    plain, inputs = stirred(MobileViTv2ForSemanticSegmentation(tiny(aspp_dropout_prob=0.0))), batch()
    fields = {"use_auxiliary_head": True, "classifier_dropout_prob": 0.0, "aspp_dropout_prob": 0.0}
    model = stirred(MobileViTv2ForSemanticSegmentation(tiny(**fields)))
    model.load_state_dict(plain.state_dict(), strict=False)
    assert "auxiliary_head" not in dict(plain.named_children())
    torch.testing.assert_close(model(**inputs).loss, plain(**inputs).loss)
    for m in (plain, model):
        m.train()
        for module in m.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.eval()
    features = plain.mobilevitv2(inputs["pixel_values"], output_hidden_states=True).hidden_states[3]
    logits = F.interpolate(model.auxiliary_head(features), (64, 64), mode="bilinear", align_corners=False)
    auxiliary = F.cross_entropy(logits, inputs["labels"], ignore_index=255)
    output = model(**inputs)
    torch.testing.assert_close(output.loss, plain(**inputs).loss + 0.4 * auxiliary, atol=1e-4, rtol=1e-4)
    assert output.hidden_states is None
    torch.testing.assert_close(model(**inputs, output_hidden_states=[0]).loss, output.loss)  # which needs another's
    output.loss.backward()
    assert all(p.grad is not None for p in model.auxiliary_head.parameters())


@heads
def test_learns_every_parameter(head):
    model = MobileViTv2ForSemanticSegmentation(tiny(segmentation_head=head, use_auxiliary_head=True)).train()
    model(**batch()).loss.backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.full((2, 64, 64), 5), "labels holds 5, but the model has labels 0 to 4"),
        (torch.full((2, 64, 64), -1), "labels holds -1"),
        (torch.zeros(2, 64, dtype=torch.long), r"labels must be \(batch, height, width\)"),
        (torch.zeros(1, 64, 64, dtype=torch.long), "labels must be"),
    ],
)
def test_wrong_labels_are_named(labels, message):
    with pytest.raises(ValueError, match=message):
        MobileViTv2ForSemanticSegmentation(tiny()).eval()(torch.randn(2, 3, 64, 64), labels=labels)


def test_one_label_is_too_few():
    with pytest.raises(ValueError, match="num_labels=1"):
        MobileViTv2ForSemanticSegmentation(tiny(num_labels=1)).eval()(**batch())
