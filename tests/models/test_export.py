"""torch.export, ONNX and torch.compile: the same numbers as eager, at batch sizes that were not traced."""

import numpy as np
import pytest
import torch
from families import CLASSIFIERS, HEADS, VISION_HEADS, head_id, images, inputs, main_output, stirred, tiny_model

from hf_efficient import onnx_export, onnx_language
from hf_efficient.attention import build_attention, list_attentions
from hf_efficient.models.compressive_performer.export import SegmentReader, TokenWriter

GRID = list_attentions(needs_grid=True)
ONE_LAYER = {"num_hidden_layers": 1}  # exporters take their time for every layer
TASKS = [head for head in HEADS if head[1] != "AutoModel"]  # a head holds its family's encoder
# An export takes seconds: the heads share mechanisms, stems and pooling out among them.
ONNX = {
    ("hugginggreen_vit", "AutoModelForImageClassification"): {"stem": "conv", "qk_norm": True},
    ("hugginggreen_vit", "AutoModelForMaskedImageModeling"): {"stem": "patch_conv", "qk_norm": True},
    ("kerformer_vit", "AutoModelForImageClassification"): {
        **{"attention": "softmax", "token_pooling": {"after": [1], "keep": 0.5}, "num_hidden_layers": 2},
    },
    ("kerformer_vit", "AutoModelForMaskedImageModeling"): {"attention": "gaussian_mixture"},
    ("kerformer_text", "AutoModelForMaskedLM"): {"attention": "performer"},
    # Non-maximum suppression is a loop, which takes ONNX minutes to optimise: predictions of all anchors are exported.
    ("mobilevit_v2", "AutoModelForObjectDetection"): {"ssd_suppression": False},
}
# MobileViTv2 has so many layers that an export takes 10 seconds: one whole model is enough.
EXPORTED = [head for head in TASKS if head[0] != "mobilevit_v2" or head in ONNX]
COMPILED_TRAINING = {"kerformer_vit": {"attention": "performer", **ONE_LAYER}, "kerformer_text": ONE_LAYER}
pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters below us warn about themselves


@pytest.mark.parametrize("attention", list_attentions())
def test_every_mechanism_exports(attention):
    module, x = build_attention(attention, 16, 2).eval(), torch.randn(5, 16, 16)
    grid = {"grid": (4, 4)} if attention in GRID else {}
    batch = {
        "hidden_states": {0: torch.export.Dim("batch", min=1, max=64)},
        **({"grid": (None, None)} if grid else {}),
    }
    with torch.no_grad():
        program = torch.export.export(module, (), {"hidden_states": x[:2], **grid}, dynamic_shapes=batch)
        found, expected = program.module()(hidden_states=x, **grid), module(x, **grid)
    torch.testing.assert_close(found.hidden_states, expected.hidden_states, atol=1e-5, rtol=1e-5)


def to_onnx(model, path):
    import onnxruntime
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    sample = inputs(model, batch=2)
    batch = {name: {0: torch.export.Dim.AUTO} for name in sample}  # leaving height and width dynamic takes minutes
    OnnxExporter().export(model, sample, config=OnnxConfig(dynamic_shapes=batch)).save(path)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("head", EXPORTED, ids=head_id)
def test_onnx_runtime_agrees(head, tmp_path):
    model = stirred(*head, **({} if head[0] == "mobilevit_v2" else ONE_LAYER) | ONNX.get(head, {}))
    session = to_onnx(model, tmp_path / "model.onnx")
    batch = inputs(model, batch=5)
    expected = model(**batch)
    # The exporter marks names that are both an input's and an output's.
    feed = {node.name: batch[node.name.removeprefix("input.")].numpy() for node in session.get_inputs()}
    for node, value in zip(session.get_outputs(), session.run(None, feed), strict=True):
        name = node.name.removeprefix("output.")
        if name in expected and expected[name] is not None:
            np.testing.assert_allclose(value, expected[name].detach().numpy(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["deeplabv3", "pspnet"])
@torch.no_grad()
def test_onnx_of_a_segmentation_head(name, tmp_path):
    import onnxruntime

    model = stirred("mobilevit_v2", "AutoModelForSemanticSegmentation", segmentation_head=name)
    head, features = model.segmentation_head, model.mobilevitv2(images(model.config, 5)).last_hidden_state
    batch = ({0: torch.export.Dim.AUTO},)
    torch.onnx.export(head, (features[:2],), dynamo=True, dynamic_shapes=batch).save(tmp_path / "head.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "head.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: features.numpy()})
    np.testing.assert_allclose(logits, head(features).numpy(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", VISION_HEADS, ids=head_id)
def test_the_command_knows_every_head(head, tmp_path):
    model = tiny_model(*head)
    model.save_pretrained(tmp_path)
    assert type(onnx_export.load(str(tmp_path), trust_remote_code=False)) is type(model)


@pytest.mark.parametrize("family", [family for family in CLASSIFIERS if family not in COMPILED_TRAINING])
def test_compiled_is_equal(family):
    model = stirred(family, CLASSIFIERS[family])
    batch = inputs(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(main_output(compiled(**batch)), main_output(model(**batch)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("attention", "ngrams"), [("performer", 3), ("softmax", 0)])
@torch.no_grad()
def test_segments_and_tokens_of_the_language_model_export(attention, ngrams):
    """A text from its beginning, segment by segment, the last one token by token."""
    fields = {"attention": attention, "ngrams": ngrams, **ONE_LAYER}
    model = stirred("compressive_performer", "AutoModelForCausalLM", **fields)
    length, segments = model.config.segment_length, 5  # compressed memory is filled, and forgets, within them
    text = torch.randint(0, 200, (2, segments * length))
    reader, writer = SegmentReader(model), TokenWriter(model)
    memory, state = reader.start(len(text))
    nothing = torch.zeros_like(text[:, :length])
    read = exported(reader, nothing, torch.tensor(0), *memory, *state)
    logits, after = [], read(nothing, torch.tensor(-length), *memory, *map(torch.zeros_like, state))[1:]
    for expected, found in zip(state, after[len(memory) :], strict=True):
        torch.testing.assert_close(found, expected)
    for start in range(0, (segments - 1) * length, length):
        found, *after = read(text[:, start : start + length], torch.tensor(start), *after)
        logits.append(found)
    state = after[len(memory) :]
    write = exported(writer, text[:, :1], torch.tensor([0]), *state) if attention != "softmax" else writer
    for place in range(length):
        token = text[:, (segments - 1) * length + place, None]
        found, *state = write(token, torch.tensor([place]), *state)
        logits.append(found)
    torch.testing.assert_close(torch.cat(logits, 1), model(text).logits, atol=1e-5, rtol=1e-5)


def exported(function, *inputs):
    return torch.export.export(function, inputs, strict=False).module()


def test_onnx_of_the_language_model(tmp_path):
    """`export_language_model` compares a text that is read in segments and in tokens."""
    stirred("compressive_performer", "AutoModelForCausalLM", ngrams=3, **ONE_LAYER).save_pretrained(tmp_path)
    assert onnx_language.export_language_model(str(tmp_path), tmp_path / "model.onnx").difference < 1e-5
    texts = torch.randint(0, 200, (3, 11)).numpy()
    model, again = onnx_language.OnnxLanguageModel(tmp_path / "model.onnx"), []
    for _ in range(2):
        again.append(model(texts))
        model.reset()
    np.testing.assert_array_equal(*again)
    assert np.abs(model(texts[:1])[0] - again[0][0]).max() < 1e-5  # in a batch of one


@pytest.mark.parametrize("family", COMPILED_TRAINING)
def test_compiled_training_has_equal_gradients(family):
    model = stirred(family, CLASSIFIERS[family], **COMPILED_TRAINING[family])
    batch = inputs(model, labels=True)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    grads = []
    for run in (model, compiled):
        model.zero_grad()
        run(**batch).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for eager, other in zip(*grads, strict=True):
        torch.testing.assert_close(eager, other, atol=1e-5, rtol=1e-4)
