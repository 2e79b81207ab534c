"""torch.export, ONNX and torch.compile: the same numbers as eager, at batch sizes that were not traced."""

import numpy as np
import pytest
import torch
from families import HEADS, VISION_HEADS, head_id, images, inputs, main_output, tiny_model
from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

from hf_efficient import onnx_export, onnx_language
from hf_efficient.attention import list_attentions
from hf_efficient.models.compressive_performer.export import SegmentReader, TokenWriter

GRID = list_attentions(needs_grid=True)
# Non-maximum suppression is a loop, which takes ONNX minutes to optimise: predictions of all anchors are exported.
FIELDS = {"mobilevit_v2": {"ssd_suppression": False}}
ONE_LAYER = {"num_hidden_layers": 1}  # exporters take their time for every layer
TASKS = [head for head in HEADS if head[1] != "AutoModel"]  # a head holds its family's encoder
FIRST_TASKS = list({head[0]: head for head in reversed(TASKS)}.values())  # one of each family
pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters below us warn about themselves


def stirred(family, auto, **fields):
    model = tiny_model(family, auto, **fields)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.02)
    return model


@pytest.mark.parametrize("attention", list_attentions())
def test_every_mechanism_exports(attention):
    fields = {"attention": attention, "use_cls_token": attention not in GRID, **ONE_LAYER}
    model = stirred("kerformer_vit", "AutoModelForImageClassification", **fields)
    pixels = images(model.config, 5)
    with torch.no_grad():
        batch = {"pixel_values": {0: torch.export.Dim("batch", min=1, max=64)}}
        program = torch.export.export(model, (), {"pixel_values": pixels[:2]}, dynamic_shapes=batch)
        torch.testing.assert_close(
            program.module()(pixel_values=pixels)["logits"], model(pixels).logits, atol=1e-5, rtol=1e-5
        )


def to_onnx(model, path):
    import onnxruntime

    sample = inputs(model, batch=2)
    batch = {name: {0: torch.export.Dim.AUTO} for name in sample}  # leaving height and width dynamic takes minutes
    OnnxExporter().export(model, sample, config=OnnxConfig(dynamic_shapes=batch)).save(path)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("head", TASKS, ids=head_id)
def test_onnx_runtime_agrees(head, tmp_path):
    model = stirred(*head, **FIELDS.get(head[0], ONE_LAYER))
    session = to_onnx(model, tmp_path / "model.onnx")
    batch = inputs(model, batch=5)
    expected = model(**batch)
    # The exporter marks names that are both an input's and an output's.
    feed = {node.name: batch[node.name.removeprefix("input.")].numpy() for node in session.get_inputs()}
    for node, value in zip(session.get_outputs(), session.run(None, feed), strict=True):
        name = node.name.removeprefix("output.")
        if name in expected and expected[name] is not None:
            np.testing.assert_allclose(value, expected[name].detach().numpy(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention", ["performer", "gaussian_mixture"])
def test_onnx_of_other_mechanisms(attention, tmp_path):
    model = stirred("kerformer_vit", "AutoModelForImageClassification", attention=attention, **ONE_LAYER)
    session = to_onnx(model, tmp_path / "model.onnx")
    pixels = images(model.config, 5)
    (logits,) = session.run(None, {"pixel_values": pixels.numpy()})
    np.testing.assert_allclose(logits, model(pixels).logits.detach().numpy(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", VISION_HEADS, ids=head_id)
def test_the_command_knows_every_head(head, tmp_path):
    model = tiny_model(*head)
    model.save_pretrained(tmp_path)
    assert type(onnx_export.load(str(tmp_path), trust_remote_code=False)) is type(model)


@pytest.mark.parametrize("head", FIRST_TASKS, ids=head_id)
def test_compiled_is_equal(head):
    model = stirred(*head)
    batch = inputs(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(main_output(compiled(**batch)), main_output(model(**batch)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["performer", "softmax"])
@torch.no_grad()
def test_segments_and_tokens_of_the_language_model_export(attention):
    """A text from its beginning, segment by segment, the last one token by token."""
    model = stirred("compressive_performer", "AutoModelForCausalLM", attention=attention, **ONE_LAYER)
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
    stirred("compressive_performer", "AutoModelForCausalLM", **ONE_LAYER).save_pretrained(tmp_path)
    assert onnx_language.export_language_model(str(tmp_path), tmp_path / "model.onnx").difference < 1e-5
    texts = torch.randint(0, 200, (3, 11)).numpy()
    model, again = onnx_language.OnnxLanguageModel(tmp_path / "model.onnx"), []
    for _ in range(2):
        again.append(model(texts))
        model.reset()
    np.testing.assert_array_equal(*again)
    assert np.abs(model(texts[:1])[0] - again[0][0]).max() < 1e-5  # in a batch of one


@pytest.mark.parametrize("attention", ["kerformer", "performer"])
def test_compiled_training_has_equal_gradients(attention):
    model = stirred("kerformer_vit", "AutoModelForImageClassification", attention=attention, **ONE_LAYER)
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
