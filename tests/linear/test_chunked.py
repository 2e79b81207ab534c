"""The kernel engine against its formula written out over an N×N matrix: outputs, states and every gradient."""

import pytest
import torch
from kernel_oracle import (
    MAPS,
    FlooredMap,
    assert_equal_with_gradients,
    both_ways,
    every_map,
    explicit,
    heads_first,
    inputs,
    total_of,
    weight_for,
)
from torch.testing import assert_close

from hf_efficient.linear import EluFeatures, initial_state, kernel_attention, kernel_step


@every_map
@both_ways
@pytest.mark.parametrize("normalise", [True, False], ids=["normalised", "numerator"])
@pytest.mark.parametrize("kind", ["none", "mask", "dropout"])
def test_formula(name, causal, normalise, kind):
    leaves, weight = inputs(name), weight_for(kind)
    q, k, v = heads_first(leaves)
    fast, state = kernel_attention(
        q, k, v, MAPS[name][0], causal=causal, normalise=normalise, key_weight=weight, chunk_size=8, block_size=4
    )
    slow = explicit(name, q, k, v, causal, weight, normalise)
    assert_equal_with_gradients((fast, total_of(state)), slow, leaves)


@every_map
@both_ways
def test_state_in_and_out_with_gradients(name, causal):
    leaves = inputs(name)
    q, k, v = heads_first(leaves)
    state = initial_state(2, 2, 4, 4, MAPS[name][0], dtype=torch.float64)
    state["S"] = torch.rand_like(state["S"]).requires_grad_()
    if "c" in state:
        state["c"] = torch.randn_like(state["c"])
    kept = {key: x.clone() for key, x in state.items()}
    fast, after = kernel_attention(q, k, v, MAPS[name][0], causal=causal, state=state, chunk_size=8, block_size=4)
    slow = explicit(name, q, k, v, causal, state=state)
    assert_equal_with_gradients((fast, total_of(after)), slow, [*leaves, state["S"]])
    assert all(torch.equal(state[key], kept[key]) for key in kept), "the state given is the caller's"


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 197, 513, 1000])
@both_ways
def test_any_length_in_any_chunks(length, causal):
    leaves = inputs("log with floor", 1, 1, length, 3, 2)
    q, k, v = heads_first(leaves)
    slow = explicit("log with floor", q, k, v, causal)
    for chunk_size in (1, 3, 64, 100, 512, None):
        fast, state = kernel_attention(q, k, v, FlooredMap(), causal=causal, chunk_size=chunk_size)
        assert_equal_with_gradients((fast, total_of(state)), slow, leaves)


@both_ways
def test_values_of_another_width_and_odd_strides(causal):
    leaves = inputs("elu", batch=1, width=10, value_width=3)
    q, k, v = heads_first(leaves)
    q, k, v = q[..., ::2].expand(2, -1, -1, -1), torch.cat([k, k + 1])[..., 5:], v.expand(2, -1, -1, -1)
    fast, state = kernel_attention(q, k, v, EluFeatures(), causal=causal, eps=1e-2, chunk_size=16)
    assert fast.shape == (2, 2, 37, 3)
    slow = explicit("elu", q, k, v, causal, eps=1e-2)
    assert_equal_with_gradients((fast, total_of(state)), slow, leaves)
    for a, b in zip(torch.autograd.grad(fast.sum(), leaves), torch.autograd.grad(slow[0].sum(), leaves), strict=True):
        assert_close(a, b, atol=1e-9, rtol=1e-9)  # a cotangent that is one number expanded


@every_map
@both_ways
def test_contiguous_inputs_are_left_as_they_are(name, causal):
    """Where heads come first and no row is padded, ready-made features are read in place."""
    leaves = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in inputs(name, length=16)]
    before = [x.detach().clone() for x in leaves]
    fast, state = kernel_attention(*leaves, MAPS[name][0], causal=causal, chunk_size=16, block_size=4)
    assert_equal_with_gradients((fast, total_of(state)), explicit(name, *leaves, causal), leaves)
    assert all(torch.equal(a, b) for a, b in zip(leaves, before, strict=True))


@every_map
@both_ways
def test_float32_is_accurate(name, causal):
    leaves = inputs(name, length=1000, dtype=torch.float32)
    fast, _ = kernel_attention(*heads_first(leaves), MAPS[name][0], causal=causal)
    cotangent = torch.randn_like(fast)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    slow, _ = explicit(name, *heads_first(exact), causal)
    assert fast.dtype == torch.float32
    assert_close(fast.double(), slow, atol=1e-5, rtol=1e-5)
    for a, b in zip(
        torch.autograd.grad(fast, leaves, cotangent), torch.autograd.grad(slow, exact, cotangent.double()), strict=True
    ):
        assert (a.double() - b).norm() < 1e-4 * b.norm()


@both_ways
def test_bfloat16_is_summed_in_float32(causal):
    low = [x.detach().requires_grad_() for x in inputs("elu", length=300, dtype=torch.bfloat16)]
    high = [x.detach().float().requires_grad_() for x in low]
    with torch.autocast("cpu", torch.bfloat16):
        output, state = kernel_attention(*heads_first(low), EluFeatures(), causal=causal)
    exact, _ = kernel_attention(*heads_first(high), EluFeatures(), causal=causal)
    assert (output.dtype, state["S"].dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(output, exact.bfloat16())
    cotangent = torch.randn_like(output)
    for a, b in zip(
        torch.autograd.grad(output, low, cotangent), torch.autograd.grad(exact, high, cotangent.float()), strict=True
    ):
        assert torch.equal(a, b.bfloat16())


@every_map
@pytest.mark.parametrize("normalise", [True, False], ids=["normalised", "numerator"])
@pytest.mark.parametrize("grad", [False, True], ids=["in place", "with gradients"])
def test_steps_equal_the_whole(name, normalise, grad):
    leaves = inputs(name, length=9)
    q, k, v = heads_first(leaves)
    whole, after = kernel_attention(q, k, v, MAPS[name][0], causal=True, normalise=normalise)
    state = initial_state(2, 2, 4, 4, MAPS[name][0], normalise, dtype=torch.float64)
    memory, outputs = state["S"], []
    with torch.set_grad_enabled(grad):
        for i in range(9):
            one = (x[:, :, i : i + 1] for x in (q, k, v))
            output, state = kernel_step(*one, state, MAPS[name][0], normalise=normalise)
            outputs.append(output)
    steps = torch.cat(outputs, 2)
    assert (state["S"] is memory) == (not grad)
    if grad:
        assert_equal_with_gradients((steps, total_of(state)), (whole, total_of(after)), leaves)
    else:
        assert_close((steps, total_of(state)), (whole, total_of(after)), atol=1e-12, rtol=1e-12)
