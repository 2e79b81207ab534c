"""Softmax attention: the fused kernel, and the bias per key that others run through it."""

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close

from hf_efficient.attention.softmax import softmax_attention

both_ways = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def heads(length=11, width=5):
    return [torch.randn(2, HEADS, length, width, dtype=torch.float64, requires_grad=True) for _ in range(3)]


@both_ways
def test_it_is_pytorchs_attention(causal):
    attention, x = make(("softmax", {}, causal)), tokens(2, 11)
    q, k, v = (
        p(x).view(2, 11, HEADS, -1).transpose(1, 2) for p in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(2, 11, HIDDEN)
    assert_close(attention(x).hidden_states, attention.o_proj(mixed), atol=1e-12, rtol=1e-9)


@both_ways
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("learned_scale", [False, True], ids=["number", "per head"])
def test_a_bias_per_key(causal, masked, learned_scale):
    leaves = heads()
    q, k, v = leaves
    bias = torch.randn(2, HEADS, 11, dtype=torch.float64, requires_grad=True)
    scale = torch.rand(HEADS, 1, 1, dtype=torch.float64, requires_grad=True) if learned_scale else 0.7
    allowed = torch.ones(2, 1, 11, 11, dtype=torch.bool)
    mask = None
    if masked:
        mask = torch.ones(2, 11, dtype=torch.bool)
        mask[0, :3] = mask[1, 7:] = False  # with causality, row 0 of the first sample sees nothing
        allowed = allowed & mask[:, None, None]
    allowed = allowed.tril() if causal else allowed
    fast = softmax_attention(q, k, v, causal=causal, key_mask=mask, key_bias=bias, scale=scale)
    logits = (scale * q @ k.mT + bias.unsqueeze(-2)).masked_fill(~allowed, -1e9)
    slow = logits.softmax(-1).masked_fill(~allowed, 0) @ v
    assert_close(fast, slow, atol=1e-10, rtol=1e-9)
    leaves = [*leaves, bias, *([scale] if learned_scale else [])]
    for a, b in zip(
        torch.autograd.grad(fast.square().sum(), leaves), torch.autograd.grad(slow.square().sum(), leaves), strict=True
    ):
        assert_close(a, b, atol=1e-9, rtol=1e-8)


def test_its_state_is_a_cache_of_all_keys():
    attention = make(("softmax", {}, True))
    state = attention.initial_state(2, dtype=torch.float64)
    state = attention(tokens(2, 4), state=state).state
    state = attention(tokens(2, 3), state=state, key_mask=torch.tensor([[True] * 3, [False, True, True]])).state
    assert state["k"].shape == state["v"].shape == (2, HEADS, 7, HIDDEN // HEADS)
    assert state["mask"].sum(-1).tolist() == [7, 6]
