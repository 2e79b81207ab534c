"""Decoding with the weights at hand is decoding through the layers' modules, whatever becomes of the weights."""

import copy
import gc
import weakref

import pytest
import torch
from compressive_performer_cases import ARMS, EVERY, RECIPE, SHAPES, make, text
from torch import nn
from torch.testing import assert_close

from hf_efficient.models.compressive_performer.fast import decoding
from hf_efficient.models.compressive_performer.fast.decoding import decoder_of

MODELS = {name: fields for name, fields in EVERY.items() if name not in SHAPES}
CLOSE = {"atol": 1e-9, "rtol": 1e-9}
PROMPT, LENGTH = 19, 35  # through two ends of segments, the second of which forgets


@torch.no_grad()
def decode(model, ids, start=PROMPT):
    """Logits of a prompt's last token and of all that follow, one by one."""
    outputs = model(ids[:, :start], use_cache=True)
    logits = [outputs.logits[:, -1]]
    for i in range(start, ids.shape[1]):
        outputs = model(ids[:, i : i + 1], past_key_values=outputs.past_key_values, use_cache=True)
        logits.append(outputs.logits[:, -1])
    return torch.stack(logits, 1)


@pytest.fixture
def steps(monkeypatch):
    """How often a layer's step was taken with weights at hand."""
    taken, real = [], decoding.LayerStep.look_back

    def counted(self, *inputs):
        taken.append(self)
        return real(self, *inputs)

    monkeypatch.setattr(decoding.LayerStep, "look_back", counted)
    return taken


def observed(model):
    """A copy whose layers have to be called as modules."""
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("fields", "rows"),
    [(fields, 3) for fields in MODELS.values()] + [(fields, 1) for fields in ARMS.values()],
    ids=[*MODELS, *(f"{name}, one row" for name in ARMS)],
)
def test_it_is_what_the_modules_compute(fields, rows, steps):
    model, ids = make(**fields), text(rows, LENGTH)
    expected = decode(observed(model), ids)
    assert not steps
    assert_close(decode(model, ids), expected, **CLOSE)
    attention = model.model.layers[0].memory_attention
    assert bool(steps) == (attention.key_vectors == attention.num_heads)


@pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)
def test_gradients_of_what_follows_on_decoded_tokens(fields):
    """What a step leaves behind are tensors that autograd takes."""
    model, ids = make(**fields), text(2, LENGTH)
    prompt, rest = ids[:, : PROMPT + 3], ids[:, PROMPT + 3 :]

    def gradients():
        with torch.no_grad():
            outputs = model(prompt[:, :PROMPT], use_cache=True)
            for i in range(PROMPT, PROMPT + 3):
                outputs = model(prompt[:, i : i + 1], past_key_values=outputs.past_key_values, use_cache=True)
            outputs.logits.mul_(2)
        for training in (False, True):
            model.train(training).zero_grad()
            model(rest, labels=rest, memory=outputs.past_key_values).lm_loss.backward()
            yield [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.eval()

    found = list(gradients())
    model.model.layers[0].mlp.register_forward_hook(lambda *_: None)  # now through the modules
    assert_close(found, list(gradients()), **CLOSE)


def changed_in_place(model):
    for parameter in model.parameters():
        parameter.mul_(1.2)


def replaced(model):
    layer = model.model.layers[0].memory_attention
    layer.o_proj.weight = nn.Parameter(2 * layer.o_proj.weight)


def assigned(model):
    weights = {name: 2 * x if "fc1" in name else x.clone() for name, x in model.state_dict().items()}
    model.load_state_dict(weights, assign=True)
    model.tie_weights()


def moved(model):
    for layer in model.model.layers:
        layer.layernorm_after.weight.data = 2 * layer.layernorm_after.weight.data


def another_module(model):
    model.model.layers[0].mlp = copy.deepcopy(model.model.layers[1].mlp)


def another_layer(model):
    model.model.layers[0] = copy.deepcopy(model.model.layers[1])


def cast_and_back(model):
    model.bfloat16().double()


def wrapped(model):
    """As adapters do it: another class, which calls the old one."""

    class Doubled(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return 2 * self.layer(x)

    mlp = model.model.layers[0].mlp
    mlp.fc1 = Doubled(mlp.fc1)


def parametrised(model):
    """Its weight becomes a property that is computed."""

    class Doubled(nn.Module):
        def forward(self, x):
            return 2 * x

    nn.utils.parametrize.register_parametrization(model.model.layers[1].mlp.fc1, "weight", Doubled())


def hooked(model):
    model.model.layers[1].layernorm_before.register_forward_hook(lambda module, args, output: 2 * output)


def forward_replaced(model):
    """As accelerate's offloading does it."""
    layer = model.model.layers[1].mlp
    old = layer.forward
    layer.forward = lambda x: 2 * old(x)


CHANGES = [
    *(changed_in_place, replaced, assigned, moved, another_module, another_layer, cast_and_back),
    *(wrapped, parametrised, hooked, forward_replaced),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_weights_at_hand_are_never_stale(change, steps):
    model, ids = make(), text(1, LENGTH)
    before = decode(model, ids)
    assert steps
    with torch.no_grad():
        change(model)
    after = decode(model, ids)
    assert (after - before).abs().max() > 1e-4
    assert_close(after, decode(observed(model), ids), **CLOSE)


@pytest.mark.parametrize("norm", ["q_norm", "k_norm"])
@torch.no_grad()
def test_a_changed_gain_of_queries_or_keys_is_heeded_in_the_midst_of_a_segment(norm, steps):
    """As if the attention's state had been made with it."""

    def after_change(forget):
        model, ids = make(**RECIPE), text(1, PROMPT + 2)
        cache = model(ids[:, :PROMPT], use_cache=True).past_key_values
        before = model(ids[:, PROMPT:-1], past_key_values=cache).logits
        getattr(model.model.layers[1].memory_attention, norm).weight.mul_(1.5)
        for layer in cache.layers if forget else ():
            layer.memory = layer.memory.slots_only()
        return before, model(ids[:, -1:], past_key_values=cache).logits

    assert_close(after_change(forget=False), after_change(forget=True), **CLOSE)
    assert steps


def test_a_hook_sees_every_token():
    model, ids, seen = make(), text(1, LENGTH), []
    decode(model, ids)
    model.model.layers[0].memory_attention.register_forward_hook(lambda module, args, output: seen.append(1))
    decode(model, ids)
    assert len(seen) >= LENGTH - PROMPT


def test_a_hook_on_all_modules_sees_them(steps):
    model, ids, seen = make(), text(1, LENGTH), set()
    hook = nn.modules.module.register_module_forward_hook(lambda module, args, output: seen.add(module))
    decode(model, ids)
    hook.remove()
    assert model.model.layers[1].mlp.fc2 in seen and not steps
    decode(model, ids)
    assert steps


def test_hidden_states_are_shown(steps):
    model, ids = make(), text(1, 12)
    with torch.no_grad():
        cache = model(ids[:, :-1], use_cache=True).past_key_values
        assert len(model(ids[:, -1:], past_key_values=cache, output_hidden_states=True).hidden_states) == 3
    assert not steps


def test_old_weights_and_models_are_let_go():
    model, ids = make(), text(1, LENGTH)
    decode(model, ids)
    decoder = weakref.ref(decoder_of(model.model))
    model.float()
    gc.collect()
    assert decoder() is None
    decode(model, ids)
    gone = weakref.ref(model.model)
    del model
    gc.collect()
    assert gone() is None


def test_a_copy_decodes_with_its_own_weights():
    model, ids = make(), text(1, LENGTH)
    expected = decode(model, ids)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[0].mlp.fc1.weight.zero_()
    assert (decode(other, ids) - expected).abs().max() > 1e-4
    assert_close(decode(model, ids), expected, **CLOSE)


def test_in_inference_mode_and_under_autocast(steps):
    model, ids = make(torch.float32), text(1, LENGTH)
    expected = decode(model, ids)
    taken = len(steps)
    with torch.inference_mode():
        assert_close(decode(model, ids), expected)
    assert len(steps) == 2 * taken
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(decode(model, ids).float(), expected, atol=0.1, rtol=0.1)
    assert len(steps) == 2 * taken
