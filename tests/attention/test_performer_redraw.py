"""When Ω is redrawn, from what, and what a backward pass sees of it."""

import pytest
import torch
from cases import tokens
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from hf_efficient.attention import build_attention

both_ways = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def performer(**options):
    torch.manual_seed(7)
    return build_attention("performer", 16, 2, **{"redraw_interval": 3, **options}).train()


def changes(attention, forwards, x=None):
    """Which of some forwards drew a new Ω, counted from 1."""
    x, drawn = tokens(1, 5, torch.float32) if x is None else x, []
    for i in range(1, forwards + 1):
        before = attention.projection
        attention(x)
        if not torch.equal(before, attention.projection):
            drawn.append(i)
    return drawn


def test_redraws_come_at_every_interval_of_training_forwards():
    attention = performer()
    assert changes(attention, 10) == [3, 6, 9]
    assert changes(attention.eval(), 10) == []
    assert int(attention.forwards) == 10, "evaluation is not counted"
    assert changes(attention.train(), 5) == [2, 5]
    assert changes(performer(redraw_interval=0), 10) == []
    assert changes(performer(redraw_interval=1), 3) == [1, 2, 3]


def test_the_counter_is_saved():
    attention = performer()
    changes(attention, 4)
    resumed = performer(seed=0)
    resumed.load_state_dict(attention.state_dict())
    assert torch.equal(resumed.projection, attention.projection)
    assert changes(resumed, 6) == changes(attention, 6) == [2, 5]
    assert torch.equal(resumed.projection, attention.projection)


def test_omega_is_a_function_of_seed_layer_and_index():
    def draws(**options):
        attention, found = performer(**options), []
        for index in range(3):
            attention.redraw(index)
            found.append(attention.projection.clone())
        return found

    torch.manual_seed(1)
    first = draws(seed=5, layer_idx=2)
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(first, draws(seed=5, layer_idx=2), strict=True))
    everything = [*first, *draws(seed=5, layer_idx=3), *draws(seed=6, layer_idx=2), *draws(seed=2, layer_idx=5)]
    for i, a in enumerate(everything):
        assert not any(torch.equal(a, b) for b in everything[:i])


def test_drawing_leaves_the_global_generator_alone_and_heeds_no_default_device():
    attention = performer()
    state = torch.get_rng_state()
    attention.redraw(4)
    assert torch.equal(torch.get_rng_state(), state)
    expected = attention.projection
    with torch.device("meta"):
        attention.redraw(4)
    assert torch.equal(attention.projection, expected)


def train_steps(attention, run, causal_steps=6):
    """Gradients of some steps, the redraws of which fall between and inside them."""
    gradients = []
    for step in range(causal_steps):
        x = tokens(2, 9, torch.float32, seed=step).requires_grad_()
        run(x).square().sum().backward()
        gradients.append([x.grad, *(p.grad.clone() for p in attention.parameters())])
        attention.zero_grad()
    return gradients


@both_ways
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_redraws_no_more_and_changes_no_gradient(causal, use_reentrant):
    plain, saving = performer(redraw_interval=2, causal=causal), performer(redraw_interval=2, causal=causal)
    expected = train_steps(plain, lambda x: plain(x).hidden_states)
    found = train_steps(
        saving, lambda x: checkpoint(lambda y: saving(y).hidden_states, x, use_reentrant=use_reentrant)
    )
    assert int(saving.forwards) == int(plain.forwards) == 6
    assert torch.equal(saving.projection, plain.projection)
    assert_close(found, expected, atol=1e-7, rtol=1e-6)
    assert not torch.equal(performer().projection, plain.projection)


@both_ways
def test_a_backward_pass_uses_the_omega_of_its_forward(causal):
    attention = performer(causal=causal)
    x = tokens(2, 9, torch.float32).requires_grad_()
    output = attention(x).hidden_states
    expected = torch.autograd.grad(output.square().sum(), [x, *attention.parameters()], retain_graph=True)
    attention.redraw(1)
    attention.to(torch.float32)
    found = torch.autograd.grad(output.square().sum(), [x, *attention.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    other = torch.autograd.grad(attention(x).hidden_states.square().sum(), x)[0]
    assert not torch.allclose(other, expected[0]), "the new Ω is another one"
