"""Reversible layers: the gradients of the formula with activations kept, and memory that depth does not cost."""

import pytest
import torch
from compressive_performer_cases import ARMS, NO_MEMORY, RECIPE, make, text
from torch.testing import assert_close

from hf_efficient.models.compressive_performer import modeling_compressive_performer as modeling
from hf_efficient.models.compressive_performer.fast.switch import switched_off
from hf_efficient.models.compressive_performer.reversible import run_reversibly

CASES = {
    **ARMS,
    "recipe": RECIPE,
    "dropout": {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2},
    "dropout, softmax": {"attention": "softmax", "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2},
    "redrawn": {"attention_options": {"redraw_interval": 2}},
}


def count_runs(monkeypatch):
    """How often layers were run reversibly."""
    runs = []
    monkeypatch.setattr(modeling, "run_reversibly", lambda *call: runs.append(call) or run_reversibly(*call))
    return runs


def train(model, calls=3, mask=None, **options):
    """Some calls with memory carried on: losses, all gradients, the memory, and the next random number."""
    torch.manual_seed(7)
    memory, losses = None, []
    for step in range(calls):
        ids = text(2, 13, seed=step)
        outputs = model(ids, labels=ids, memory=memory, attention_mask=mask, **options)
        outputs.loss.backward()
        memory = outputs.memory
        losses.append(outputs.loss.detach())
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    slots = [layer.memory[:3] for layer in memory.layers]
    return losses, grads, slots, torch.rand(1)


def both_ways(monkeypatch, dtype=torch.float64, prepare=lambda model: model, **fields):
    """The same training with activations computed again and with activations kept."""
    runs, found = count_runs(monkeypatch), []
    for can in (True, False):
        with monkeypatch.context() as patch:
            if not can:
                patch.setattr(modeling, "can_recompute", lambda model: False)
            found.append(train(prepare(make(dtype, **fields, reversible=True).train())))
    assert len(runs) == 3, "once per call, of the first model alone"
    return found


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_gradients_are_those_of_the_formula(fields, monkeypatch):
    recomputed, kept = both_ways(monkeypatch, **fields)
    assert_close(recomputed, kept, atol=1e-10, rtol=1e-8)


def test_without_what_is_there_for_speed(monkeypatch):
    with switched_off():
        recomputed, kept = both_ways(monkeypatch)
    assert_close(recomputed, kept, atol=1e-10, rtol=1e-8)


def test_padding(monkeypatch):
    mask = torch.ones(2, 13, dtype=torch.long)
    mask[0, 9:], mask[1, :4] = 0, 0
    found = [train(make(reversible=True).train(), mask=mask)]
    monkeypatch.setattr(modeling, "can_recompute", lambda model: False)
    found.append(train(make(reversible=True).train(), mask=mask))
    assert_close(*found, atol=1e-10, rtol=1e-8)


def test_autocast(monkeypatch):
    """The second pass computes in the same precision as the first."""
    with torch.autocast("cpu", torch.bfloat16):
        recomputed, kept = both_ways(monkeypatch, torch.float32)
    assert torch.equal(recomputed[0][0], kept[0][0])
    for name, grad in recomputed[1].items():
        assert_close(grad, kept[1][name], atol=0.02 * kept[1][name].abs().max().item(), rtol=0.1)


def test_frozen_weights_stay_without_gradients(monkeypatch):
    def freeze(model):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("fc2" in name)
        return model

    recomputed, kept = both_ways(monkeypatch, prepare=freeze)
    assert len(recomputed[1]) == 4
    assert_close(recomputed, kept, atol=1e-10, rtol=1e-8)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_adapters(monkeypatch):
    peft = pytest.importorskip("peft", reason="pip install hf-efficient[interop]")
    lora = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    recomputed, kept = both_ways(
        monkeypatch, prepare=lambda model: torch.manual_seed(3) and peft.get_peft_model(model, lora).double().train()
    )
    assert recomputed[1] and all("lora" in name for name in recomputed[1])
    assert_close(recomputed, kept, atol=1e-10, rtol=1e-8)


def saved_bytes(**fields):
    """What autograd keeps of a step for its backward pass."""
    model, ids, sizes = make(torch.float32, **fields).train(), text(2, 16), {}

    def keep(x):
        if not isinstance(x, torch.nn.Parameter) and x.untyped_storage().data_ptr():
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = model(ids, labels=ids).loss
    loss.backward()
    return sum(sizes.values())


@pytest.mark.parametrize("fields", [{}, {"attention": "softmax"}, NO_MEMORY], ids=str)
def test_depth_costs_no_memory(fields):
    plain, reversible = (
        [saved_bytes(num_hidden_layers=layers, reversible=reversible, **fields) for layers in (2, 8)]
        for reversible in (False, True)
    )
    assert plain[1] > 2.5 * plain[0]
    assert reversible[1] < 1.05 * reversible[0] and reversible[1] < plain[1] / 4


@pytest.mark.parametrize("what", ["hidden states", "a hook", "evaluation", "checkpointing"])
def test_other_calls_have_the_same_gradients(what, monkeypatch):
    """Who looks at layers, or asks for gradients outside of training, finds activations kept."""
    expected, model = train(make(reversible=True).train()), make(reversible=True).train()
    runs, seen = count_runs(monkeypatch), []
    if what == "evaluation":
        ids = text(2, 13)
        assert model.eval()(ids, labels=ids).loss.requires_grad and not runs
        return
    if what == "a hook":
        model.model.layers[0].register_forward_hook(lambda layer, inputs, output: seen.append(output[0].shape))
    if what == "checkpointing":
        model.gradient_checkpointing_enable()
    found = train(model, **{"output_hidden_states": True} if what == "hidden states" else {})
    assert_close(found, expected, atol=1e-10, rtol=1e-8)
    assert bool(runs) == (what == "checkpointing")
    assert seen == ([(2, 13, 32)] * 3 if what == "a hook" else [])  # both streams


def test_a_model_that_is_not_reversible_is_another(tmp_path):
    ids = text(2, 13)
    model, plain = make(reversible=True), make()
    assert model.state_dict().keys() == plain.state_dict().keys()
    with torch.no_grad():
        assert (model(ids).logits - plain(ids).logits).abs().max() > 1e-3
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).config.reversible
