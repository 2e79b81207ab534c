"""One stabiliser for every form: features relative to a maximum are the features, and stay in range."""

import math

import pytest
import torch
from torch.testing import assert_close

from hf_efficient.linear import LogFeatureMap
from hf_efficient.linear.features import NO_KEY
from hf_efficient.linear.stabilise import exact_chunk_size, safe_chunk_size, stabilise_keys, stabilise_queries

every_floor = pytest.mark.parametrize("floor", [0.0, 0.1])
with_maximum = pytest.mark.parametrize("relative", [False, True], ids=["bounded", "maximum"])


def log2_features(scale=3.0):
    generator = torch.Generator().manual_seed(0)
    return [scale * torch.randn(2, n, 5, generator=generator, dtype=torch.float64) for n in (7, 9)]


@every_floor
@with_maximum
@pytest.mark.parametrize("normalise", [False, True])
def test_ratios_are_those_of_the_features(floor, relative, normalise):
    a_q, a_k = log2_features()
    c = torch.maximum(a_k.amax(1, keepdim=True), a_k.new_tensor(math.log2(floor) if floor else NO_KEY))
    c = c if relative else None
    q = stabilise_queries(a_q.clone(), c, floor, normalise)
    k = stabilise_keys(a_k.clone(), c, floor)
    found, exact = q.phi @ k.phi.mT, (a_q.exp2() + floor) @ (a_k.exp2() + floor).mT
    if normalise:  # but for one factor per query
        found, exact = found / found.sum(-1, keepdim=True), exact / exact.sum(-1, keepdim=True)
    assert_close(found, exact, atol=1e-12, rtol=1e-12)


@every_floor
def test_what_would_overflow_stays_in_range(floor):
    a_q, a_k = (x.float() for x in log2_features(scale=300.0))
    c = torch.maximum(a_k.amax(1, keepdim=True), a_k.new_tensor(math.log2(floor) if floor else NO_KEY))
    q, k = stabilise_queries(a_q.clone(), c, floor, True), stabilise_keys(a_k.clone(), c, floor)
    assert torch.isinf(a_k.exp2()).any()
    assert q.phi.isfinite().all() and q.phi.amax() <= 2
    assert k.phi.isfinite().all() and k.phi.amax() <= 2
    assert (q.phi @ k.phi.mT).sum(-1).amin() > 0


@every_floor
@with_maximum
def test_rising_and_floor_make_up_phi(floor, relative):
    """What the backward pass relies on."""
    a_q, a_k = log2_features()
    c = a_k.amax(1, keepdim=True) if relative else None
    k = stabilise_keys(a_k.clone(), c, floor, out=torch.empty_like(a_k))
    assert_close(k.rising + k.floor, k.phi)
    q = stabilise_queries(a_q.clone(), c, floor, True, out=torch.empty_like(a_q))
    row = 1 if c is None else (c - c.amax(-1, keepdim=True)).exp2()
    assert_close(q.rising + q.floor * row, q.phi)


@every_floor
def test_autograd_sees_the_features_and_not_the_maximum(floor):
    a_q, a_k = (x.requires_grad_() for x in log2_features())
    c = a_k.detach().amax(1, keepdim=True)
    scores = stabilise_queries(a_q * 1, c, floor, True).phi @ stabilise_keys(a_k * 1, c, floor).phi.mT
    exact = (a_q.exp2() + floor) @ (a_k.exp2() + floor).mT
    weights, expected = (x / x.sum(-1, keepdim=True) for x in (scores, exact))
    cotangent = torch.randn_like(weights)
    found, wanted = (torch.autograd.grad(x, (a_q, a_k), cotangent) for x in (weights, expected))
    assert_close(found, wanted, atol=1e-10, rtol=1e-8)


def test_chunks_are_short_where_maxima_rise_far():
    rising = torch.linspace(-300, 0, 64).view(1, 1, 64, 1)
    nothing = torch.full((1, 1, 1), NO_KEY)
    assert safe_chunk_size(torch.zeros_like(rising), nothing, 64) == 64
    assert 1 < safe_chunk_size(rising, nothing, 64) <= 16
    assert safe_chunk_size(100 * rising, nothing, 64) == 1
    assert exact_chunk_size(rising, LogFeatureMap(), None, 64) == safe_chunk_size(rising, nothing, 64)
    seen = {"c": torch.full((1, 1, 1), 1e4)}
    assert exact_chunk_size(rising, LogFeatureMap(), seen, 64) == 64, "nothing rises above what was seen"
