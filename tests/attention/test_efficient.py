"""Efficient attention: its formula, and what its causal form is and is not."""

import torch
from cases import HEADS, make
from torch.testing import assert_close


def heads(length=15):
    return tuple(torch.randn(2, HEADS, length, 8, dtype=torch.float64) for _ in range(3))


def test_two_softmaxes():
    q, k, v = heads()
    expected = q.softmax(-1) @ (k.softmax(2).mT @ v)
    assert_close(make(("efficient", {}, False)).attend(q, k, v), expected, atol=1e-12, rtol=1e-9)


def test_the_last_causal_row_is_the_bidirectional_one():
    q, k, v = heads()
    causal, bidirectional = (make(("efficient", {}, c)).attend(q, k, v) for c in (True, False))
    assert_close(causal[:, :, -1], bidirectional[:, :, -1], atol=1e-12, rtol=1e-9)
    assert (causal[:, :, :-1] - bidirectional[:, :, :-1]).abs().max() > 0.1
    assert_close(causal[:, :, 0], v[:, :, 0], atol=1e-12, rtol=1e-9)


def test_it_is_not_the_shortcut_with_one_denominator():
    q, k, v = heads()
    scores = (q.softmax(-1) @ k.exp().mT).tril()
    shortcut = scores @ v / scores.sum(-1, keepdim=True)
    assert (make(("efficient", {}, True)).attend(q, k, v) - shortcut).abs().max() > 0.1


def test_a_prefix_is_normalised_feature_by_feature():
    q, k, v = heads()
    causal = make(("efficient", {}, True)).attend(q, k, v)
    for i in (3, 10):
        pooled = k[:, :, : i + 1].softmax(2).mT @ v[:, :, : i + 1]
        assert_close(causal[:, :, i], (q[:, :, i : i + 1].softmax(-1) @ pooled)[:, :, 0], atol=1e-12, rtol=1e-9)


def test_keys_of_any_size_stay_exact():
    q, k, v = heads(80)
    k = 200 * k  # e^k overflows and vanishes, and running maxima rise far within a chunk
    attention = make(("efficient", {}, True))
    assert_close(attention.attend(q, k, v), attention.naive(q, k, v), atol=1e-11, rtol=1e-9)
