"""Cross-covariance attention: channels attend to channels, whatever the size of q and k."""

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make
from torch.testing import assert_close

from hf_efficient.attention import build_attention

both_ways = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def heads(length=40):
    return tuple(torch.randn(2, HEADS, length, 8, dtype=torch.float64) for _ in range(3))


def test_the_published_code():
    """XCA as in the paper's repository, with the channels first."""
    attention = make(("xcit", {}, False))
    channels_first = q, k, v = [x.mT for x in heads()]  # (B, H, D, N)
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    expected = ((q @ k.mT) * attention.temperature).softmax(-1) @ v
    assert_close(attention.attend(*(x.mT for x in channels_first)), expected.mT, atol=1e-12, rtol=1e-9)


@both_ways
def test_the_scale_of_queries_and_keys_does_not_matter(causal):
    attention = make(("xcit", {}, causal))
    q, k, v = heads()
    per_channel = torch.rand(8, dtype=torch.float64) + 0.1
    expected = attention.attend(q, k, v)
    assert_close(attention.attend(1e3 * q, per_channel * k, v), expected, atol=1e-11, rtol=1e-9)
    assert_close(attention.attend(per_channel * q, 1e-3 * k, v), expected, atol=1e-11, rtol=1e-9)
    assert (attention.attend(-q, k, v) - expected).abs().max() > 1e-3


def test_the_temperature():
    attention = build_attention("xcit", HIDDEN, HEADS).double()
    assert attention.temperature.shape == (HEADS, 1, 1)
    assert (attention.temperature == 1).all()
    q, k, v = heads()
    with torch.no_grad():
        attention.temperature[0], attention.temperature[1] = 0.0, 1e4
    output = attention.attend(q, k, v)
    assert_close(output[:, 0], v[:, 0].mean(-1, keepdim=True).expand_as(v[:, 0]), atol=1e-12, rtol=1e-9)
    best = (F.normalize(q, dim=2).mT @ F.normalize(k, dim=2))[:, 1].argmax(-1)  # (B, D)
    picked = v[:, 1].gather(-1, best.unsqueeze(1).expand(-1, 40, -1))
    assert_close(output[:, 1], picked, atol=1e-9, rtol=1e-9)


def test_the_last_causal_row_is_the_bidirectional_one():
    q, k, v = heads()
    causal, bidirectional = (make(("xcit", {}, c)).attend(q, k, v) for c in (True, False))
    assert_close(causal[:, :, -1], bidirectional[:, :, -1], atol=1e-12, rtol=1e-9)


@both_ways
def test_an_all_zero_channel_gives_finite_gradients(causal):
    attention = make(("xcit", {}, causal))
    leaves = [x.index_fill(-1, torch.tensor([2]), 0).requires_grad_() for x in heads(9)]
    attention.attend(*leaves).square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in leaves)
