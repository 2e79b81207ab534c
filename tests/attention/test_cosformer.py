"""cosFormer: the kernel behind its features, and what M is."""

import math

import pytest
import torch
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close

from hf_efficient.attention import build_attention

both_ways = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def cosine_kernel(q, k, M):
    i = torch.arange(q.shape[2], dtype=q.dtype)
    return q.relu() @ k.relu().mT * torch.cos(math.pi * (i[:, None] - i) / (2 * M))


def rows_of(scores):
    return scores / scores.sum(-1, keepdim=True).clamp_min(1e-300)  # a causal row may be all zeros


@both_ways
def test_features_multiply_to_the_cosine_kernel(causal):
    attention = make(("cosformer", {"max_length": 50}, causal))
    q, k, v = (torch.randn(2, HEADS, 20, 8, dtype=torch.float64) for _ in range(3))
    phi_q, phi_k, _ = attention.prepare(q, k, None, None)
    expected = cosine_kernel(q, k, 50 if causal else 20)
    assert_close(phi_q @ phi_k.mT, expected, atol=1e-12, rtol=1e-9)
    assert (expected >= 0).all()
    expected = expected.tril() if causal else expected
    assert_close(attention.attend(q, k, v), rows_of(expected) @ v, atol=1e-11, rtol=1e-9)


def test_bidirectional_m_is_the_number_of_real_tokens():
    attention = make(("cosformer", {"max_length": 3}, False))  # means nothing here
    q, k, v = (torch.randn(2, HEADS, 20, 8, dtype=torch.float64) for _ in range(3))
    mask = torch.arange(20) < torch.tensor([[20], [9]])
    output = attention.attend(q, k, v, key_mask=mask)
    for row, length in ((0, 20), (1, 9)):
        q_, k_, v_ = (x[row : row + 1, :, :length] for x in (q, k, v))
        expected = rows_of(cosine_kernel(q_, k_, length)) @ v_
        assert_close(output[row : row + 1, :, :length], expected, atol=1e-11, rtol=1e-9)


def test_a_longer_text_changes_no_earlier_output():
    attention, x = make(("cosformer", {"max_length": 64}, True)), tokens(2, 64)
    whole = attention(x).hidden_states
    for length in (1, 17, 63):
        assert_close(attention(x[:, :length]).hidden_states, whole[:, :length], atol=1e-11, rtol=1e-9)


def test_a_causal_text_beyond_max_length_is_refused():
    attention = build_attention("cosformer", HIDDEN, HEADS, causal=True, max_length=10)
    x = tokens(2, 11, torch.float32)
    assert torch.isfinite(attention(x[:, :10]).hidden_states).all()
    with pytest.raises(ValueError, match="position 10 is beyond max_length=10"):
        attention(x)
    state = attention(x[:, :10], state=attention.initial_state(2)).state
    with pytest.raises(ValueError, match="position 10 is beyond max_length=10"):
        attention(x[:, 10:], state=state)
    padded = torch.arange(11).expand(2, 11) > 0
    assert torch.isfinite(attention(x, key_mask=padded).hidden_states).all(), "padding takes up no position"
    assert build_attention("cosformer", HIDDEN, HEADS, max_length=10)(x).hidden_states.shape == x.shape
