"""Local attention: exactly the band, and nothing else."""

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, make, tokens
from torch.testing import assert_close

both_ways = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def heads(length):
    return tuple(torch.randn(2, HEADS, length, 8, dtype=torch.float64) for _ in range(3))


@both_ways
@pytest.mark.parametrize("window", [20, 21, 500])
def test_a_window_over_everything_is_softmax_attention(causal, window):
    q, k, v = heads(20)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert_close(make(("local", {"window": window}, causal)).attend(q, k, v), expected, atol=1e-12, rtol=1e-9)


@both_ways
@pytest.mark.parametrize("window", [1, 2, 3, 5, 19])
@pytest.mark.parametrize("length", [20, 21])
def test_the_band_is_exact(causal, window, length):
    q, k, _ = heads(length)
    values = torch.eye(length, dtype=torch.float64).expand(2, HEADS, length, length)  # so the output is the matrix
    found = make(("local", {"window": window}, causal)).attend(q, k, values)
    j = torch.arange(length)
    offset = j[:, None] - j  # i − j
    band = (offset >= 0) & (offset < window) if causal else offset.abs() <= window
    assert torch.equal(found != 0, band.expand_as(found))
    logits = (q @ k.mT / 8**0.5).masked_fill(~band, -torch.inf)
    assert_close(found, logits.softmax(-1), atol=1e-12, rtol=1e-9)


def test_a_window_of_one_is_the_value_itself():
    q, k, v = heads(9)
    assert_close(make(("local", {"window": 1}, True)).attend(q, k, v), v, atol=1e-12, rtol=1e-9)


def test_its_state_keeps_the_last_window():
    attention, x = make(("local", {"window": 5}, True)), tokens(2, 12)
    state = attention(x, state=attention.initial_state(2, dtype=torch.float64)).state
    k, v = attention.project(x)[1:]
    assert_close(state["k"], k[:, :, -5:])
    assert_close(state["v"], v[:, :, -5:])
    assert state["k"].untyped_storage().nbytes() == state["k"].nbytes, "the prompt is not kept alive"
