"""What learns from what: every parameter, W_k and W_v through memory, the compression from its own loss alone."""

import copy

import pytest
import torch
from compressive_performer_cases import ARMS, EVERY, MECHANISMS, REVERSIBLE, SHAPES, make, text
from compressive_performer_reference import Reference
from torch.testing import assert_close

LEARNED = {
    f"{attention}, {compression}": {"attention": attention, "compression": compression}
    for attention in ("performer", "softmax")
    for compression in ("conv", "autoencoder")
}


def training(**fields):
    return make(**fields).train()


def gradients(model):
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


LITERAL = {**ARMS, **SHAPES, **REVERSIBLE}


@pytest.mark.parametrize("fields", LITERAL.values(), ids=LITERAL)
def test_losses_and_gradients_are_the_algorithms(fields):
    """Three segments, memory detached between them: against autograd through the literal algorithm."""
    model, ids = training(**fields), text(2, 24)
    twin = copy.deepcopy(model)
    outputs = model(ids, labels=ids)
    outputs.loss.backward()

    references = [Reference(twin) for _ in ids]
    logits = torch.stack([reference.logits(row) for reference, row in zip(references, ids, strict=True)])
    lm_loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    per_layer = [
        [loss for reference in references for loss in reference.auxiliary[i] if loss is not None] for i in range(2)
    ]
    auxiliary = torch.stack([torch.stack(losses).mean() for losses in per_layer]).mean() if per_layer[0] else 0.0
    (lm_loss + auxiliary).backward()
    assert_close(outputs.lm_loss, lm_loss.float(), atol=1e-5, rtol=1e-5)
    if per_layer[0]:
        assert_close(outputs.auxiliary_loss, auxiliary)
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert_close(p.grad, q.grad, atol=1e-6, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("fields", EVERY.values(), ids=EVERY)
def test_three_segments_deep_every_parameter_has_a_gradient(fields):
    model, memory = training(**fields), None
    for step in range(3):
        ids = text(2, 8, seed=step)
        model.zero_grad()
        outputs = model(ids, labels=ids, memory=memory)
        outputs.loss.backward()
        memory = outputs.memory
        missing = [name for name, p in model.named_parameters() if p.grad is None]
        assert not missing, "distributed training waits for all of them"
    zero = [name for name, p in model.named_parameters() if not p.grad.any()]
    assert not zero


@pytest.mark.parametrize("fields", [{}, {"attention": "softmax"}], ids=["performer", "softmax"])
def test_keys_and_values_learn_from_memory(fields):
    """The gradient of W_k and W_v has a part that comes through what is remembered."""
    model = training(**fields, auxiliary_loss_weight=0.0)
    memory = None
    for step in range(3):
        ids = text(2, 8, seed=step)
        memory = model(ids, memory=memory).memory
    found = []
    for known in (memory, None):
        model.zero_grad()
        model(ids, labels=ids, memory=known).loss.backward()
        found.append(model.model.layers[0].memory_attention.qkv_proj.weight.grad.clone())
    assert (found[0] - found[1])[:, 16:].abs().max() > 1e-6
    slots = memory.layers[0].memory
    assert slots.compressed.shape[1] and slots.recent.shape[1] and not slots.recent.requires_grad
    attention = model.model.layers[0].memory_attention
    for first in (16, 32):  # k, v
        state = attention.recall(slots, [24, 24]).state
        grad = torch.autograd.grad(sum(x.double().square().sum() for x in state.values()), attention.qkv_proj.weight)[
            0
        ]
        assert grad[:, first : first + 16].any() and not grad[:, :16].any()


@pytest.mark.parametrize("fields", LEARNED.values(), ids=LEARNED)
def test_the_two_losses_do_not_meet(fields):
    model, ids = training(**fields), text(2, 32)
    outputs = model(ids, labels=ids)
    outputs.lm_loss.backward(retain_graph=True)
    by_lm = gradients(model)
    model.zero_grad()
    outputs.auxiliary_loss.backward()
    by_auxiliary = gradients(model)
    for name in by_lm:
        if ".compression." in name:
            assert by_lm[name] is None, name
            assert by_auxiliary[name].any(), name
        else:
            assert by_lm[name].any(), name
            assert by_auxiliary[name] is None, name


@pytest.mark.parametrize("name", [n for n in MECHANISMS if n != "xcit"])
def test_a_mechanisms_own_parameters_do_not_hear_of_the_compression(name):
    model, ids = training(**MECHANISMS[name]), text(2, 24)
    model(ids).auxiliary_loss.backward()
    heard = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert heard and all(".compression." in name for name in heard)


def test_the_weight_of_the_auxiliary_loss():
    ids = text(2, 24)
    for weight in (0.0, 0.5, 2):
        outputs = training(auxiliary_loss_weight=weight)(ids, labels=ids)
        assert_close(outputs.loss, outputs.lm_loss + weight * outputs.auxiliary_loss)
    outputs = make()(ids, labels=ids)  # not in training
    assert outputs.auxiliary_loss is None and outputs.loss == outputs.lm_loss


@pytest.mark.parametrize("compression", ["mean", "max"])
def test_compression_without_parameters_has_no_loss(compression):
    ids = text(2, 24)
    outputs = training(compression=compression)(ids, labels=ids)
    assert outputs.auxiliary_loss is None and outputs.loss == outputs.lm_loss


def test_no_gradient_passes_from_segment_to_segment():
    model, ids = training(**{"compression": "mean"}), text(1, 16)
    embeds = model.model.embed_tokens(ids).detach().requires_grad_()
    model(inputs_embeds=embeds).logits[:, 8:].sum().backward()
    assert not embeds.grad[:, :8].any() and embeds.grad[:, 8:].any()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("fields", [{}, {"attention": "softmax"}, {"hidden_dropout_prob": 0.2}], ids=str)
def test_checkpointing_changes_no_gradient(fields, reentrant):
    found = []
    for checkpoint in (False, True):
        model, memory = training(**fields), None
        if checkpoint:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(0)
        for step in range(3):
            ids = text(2, 13, seed=step)
            model.zero_grad()
            outputs = model(ids, labels=ids, memory=memory)
            outputs.loss.backward()
            memory = outputs.memory
        found.append((outputs.loss, gradients(model), memory.layers[1].memory.recent))
    assert_close(found[0], found[1])


def test_accumulated_gradients_are_those_of_the_whole_batch():
    ids, model = text(4, 24), training()
    labels = ids.clone()
    labels[0, 5:], labels[3, :9] = -100, -100
    items = (labels[:, 1:] != -100).sum()
    parts = [(ids[rows], labels[rows]) for rows in (slice(0, 1), slice(1, 4))]
    for part, targets in parts:
        model(part, labels=targets, num_items_in_batch=items).lm_loss.backward()
    accumulated = gradients(model)
    model.zero_grad()
    model(ids, labels=labels).lm_loss.backward()
    for name, grad in gradients(model).items():
        assert_close(accumulated[name], grad, atol=1e-6, rtol=1e-4)
    shares = [model(part, labels=targets, num_items_in_batch=items) for part, targets in parts]
    weights = [float(s.loss - s.lm_loss) / float(s.auxiliary_loss) for s in shares]
    assert_close(torch.tensor(sum(weights)), torch.tensor(1.0), atol=1e-4, rtol=1e-4)


def test_labels_across_segments_and_calls():
    """One loss over the whole text is the mean of the losses of its segments, given what comes after each."""
    model, ids = make(torch.float32), text(2, 25)
    with torch.no_grad():
        expected = model(ids, labels=ids).loss
        memory, total = None, 0.0
        for start in range(0, 24, 8):
            part = slice(start, start + 8)
            outputs = model(ids[:, part], shift_labels=ids[:, start + 1 : start + 9].contiguous(), memory=memory)
            memory, total = outputs.memory, total + outputs.loss / 3
    assert_close(total, expected, atol=1e-5, rtol=1e-5)


def test_dropout_acts_in_training_only():
    ids = text(2, 24)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        for attention in ("performer", "softmax"):
            model = make(**{name: 0.5}, attention=attention)
            assert torch.equal(model(ids).logits, model(ids).logits)
            assert not torch.equal(model.train()(ids).logits, model(ids).logits)


def test_features_are_redrawn_between_steps_only():
    model, ids = training(attention_options={"redraw_interval": 2}), text(2, 16)
    before = model.model.layers[0].memory_attention.attention.projection.clone()
    model(ids, labels=ids).loss.backward()
    assert torch.equal(model.model.layers[0].memory_attention.attention.projection, before)
    model(ids, labels=ids).loss.backward()
    assert not torch.equal(model.model.layers[0].memory_attention.attention.projection, before)
