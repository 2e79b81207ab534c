"""Probabilistic attention: where it is softmax attention, and what its EM steps do."""

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make
from torch.testing import assert_close

from hf_efficient.attention import build_attention

both_ways = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
every_prior = pytest.mark.parametrize("prior", ["magnitude", "uniform"])


def heads(length=14):
    return tuple(torch.randn(2, HEADS, length, 8, dtype=torch.float64) for _ in range(3))


def padding():
    mask = torch.ones(2, 14, dtype=torch.bool)
    mask[0, 9:] = mask[1, :4] = False
    return mask


@both_ways
def test_it_starts_as_softmax_attention(causal):
    attention = build_attention("probabilistic", HIDDEN, HEADS, causal=causal).double()
    assert_close(attention.alpha, torch.full((HEADS, 1, 1), 8**-0.5, dtype=torch.float64), atol=1e-7, rtol=0)
    attention.reset_parameters()
    q, k, v = heads()
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert_close(attention.attend(q, k, v), expected, atol=1e-12, rtol=1e-9)


@both_ways
def test_the_precision_is_the_scale_of_a_softmax(causal):
    attention = make(("probabilistic", {}, causal))
    q, k, v = heads()
    alpha = F.softplus(attention.precision)
    assert alpha[0] != alpha[1]
    expected = [
        F.scaled_dot_product_attention(q[:, h], k[:, h], v[:, h], is_causal=causal, scale=alpha[h].item())
        for h in range(HEADS)
    ]
    assert_close(attention.attend(q, k, v), torch.stack(expected, 1), atol=1e-11, rtol=1e-9)


@both_ways
def test_the_uniform_prior_is_gaussian_attention(causal):
    attention = make(("probabilistic", {"prior": "uniform"}, causal))
    q, k, v = heads()
    logits = -attention.alpha / 2 * (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)
    if causal:
        logits = logits.masked_fill(torch.ones(14, 14, dtype=torch.bool).triu(1), -torch.inf)
    assert_close(attention.attend(q, k, v), logits.softmax(-1) @ v, atol=1e-11, rtol=1e-9)


def penalised_likelihood(attention, q, k, adapted, mask):
    """Σ_i log Σ_j π_j N(q_i; ξ_j, 1/α) − θ/2 Σ_j ‖ξ_j − k_j‖², up to a constant, of the real tokens: (B, H)."""
    alpha = attention.alpha
    log_prior = alpha / 2 * k.square().sum(-1).unsqueeze(-2) if attention.prior == "magnitude" else 0.0
    logits = log_prior - alpha / 2 * (q.unsqueeze(-2) - adapted.unsqueeze(-3)).square().sum(-1)
    fit = logits.masked_fill(~mask[:, None, None], -torch.inf).logsumexp(-1)
    penalty = attention.key_strength / 2 * (adapted - k).square().sum(-1)
    return ((fit - penalty) * mask[:, None]).sum(-1)


@every_prior
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_every_em_step_raises_the_penalised_likelihood(prior, masked):
    attention = make(("probabilistic", {"prior": prior, "key_strength": 0.2}, False))
    q, k, _ = heads()
    mask = padding() if masked else torch.ones(2, 14, dtype=torch.bool)
    trail = [
        penalised_likelihood(attention, q, k, attention.adapt_keys(q, k, mask if masked else None, steps), mask)
        for steps in range(6)
    ]
    gains = torch.stack(trail).diff(dim=0)  # (steps, B, H)
    assert (gains >= 0).all()
    assert (gains[:2] > 1e-4).all(), "the steps do something"


@every_prior
def test_firmly_held_keys_do_not_adapt(prior):
    plain, held, loose = (
        make(("probabilistic", {"prior": prior, "key_iterations": steps, "key_strength": strength}, False))
        for steps, strength in ((0, 1.0), (3, 1e12), (3, 0.1))
    )
    q, k, v = heads()
    expected = plain.attend(q, k, v)
    assert_close(held.attend(q, k, v), expected, atol=1e-9, rtol=1e-9)
    assert (loose.attend(q, k, v) - expected).abs().max() > 1e-3


def test_padded_queries_have_no_part_in_adaptation():
    attention, mask = make(("probabilistic", {"key_iterations": 2}, False)), padding()
    q, k, _ = heads()
    expected = attention.adapt_keys(q, k, mask, 2)
    q = torch.where(mask[:, None, :, None], q, 100.0)
    assert_close(attention.adapt_keys(q, k, mask, 2), expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("steps", [0, 2])
def test_propagating_nothing_is_attending(steps):
    attention = make(("probabilistic", {"key_iterations": steps}, False))
    q, k, v = heads()
    nothing = torch.zeros(2, 14, dtype=torch.bool)
    values = torch.full_like(v, torch.nan)  # what is not observed is not read
    for mask in (None, padding()):
        propagated = attention.propagate_values(q, k, v, nothing, values, key_mask=mask)
        assert_close(propagated, attention.attend(q, k, v, key_mask=mask), atol=1e-11, rtol=1e-9)


def test_observed_values_pull_the_means():
    attention = make(("probabilistic", {"value_strength": 0.5, "value_precision": 2.0}, False))
    q, k, v = heads()
    values, observed = torch.randn_like(v), torch.arange(14).expand(2, 14) % 3 == 0
    w = attention.weights(q, k)
    seen = w[:, :, observed[0]]  # the rows i ∈ O
    means = (0.5 * v + 2.0 * seen.mT @ values[:, :, observed[0]]) / (0.5 + 2.0 * seen.sum(-2).unsqueeze(-1))
    found = attention.propagate_values(q, k, v, observed, values)
    assert_close(found, w @ means, atol=1e-12, rtol=1e-9)
    constant = attention.propagate_values(q, k, torch.ones_like(v), observed, torch.ones_like(v))
    assert_close(constant, torch.ones_like(v), atol=1e-12, rtol=0)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_by_option_every_real_token_observes_its_own_value(masked):
    options = {"value_strength": 0.5, "value_precision": 2.0}
    attention, plain = (make(("probabilistic", {**options, "value_propagation": on}, False)) for on in (True, False))
    q, k, v = heads()
    mask = padding() if masked else torch.ones(2, 14, dtype=torch.bool)
    found = attention.attend(q, k, v, key_mask=mask if masked else None)
    assert_close(found, plain.propagate_values(q, k, v, mask, v, key_mask=mask), atol=1e-11, rtol=1e-9)
    w, expected = plain.weights(q, k, key_mask=mask), torch.zeros_like(v)  # one value at a time, as it is written
    for b, real in enumerate(mask):
        for j in real.nonzero().flatten():
            mean = (
                0.5 * v[b, :, j] + 2.0 * sum(w[b, :, i, j, None] * v[b, :, i] for i in real.nonzero().flatten())
            ) / (0.5 + 2.0 * w[b, :, real, j].sum(-1, keepdim=True))
            expected[b] += w[b, :, :, j, None] * mean.unsqueeze(1)
    assert_close(found, expected, atol=1e-11, rtol=1e-9)


def test_propagation_lowers_the_penalised_error_of_the_values():
    """μ minimises θ_v Σ_j ‖μ_j − v_j‖² + β Σ_ij w_ij ‖v_i − μ_j‖²: its gradient is 0 there."""
    attention = make(("probabilistic", {"value_propagation": True, "value_strength": 0.3}, False))
    q, k, v = heads()
    w = attention.posterior(q, k, k, None)
    means = attention.pull_values(w, v, None).requires_grad_()
    spread = (v.unsqueeze(-2) - means.unsqueeze(-3)).square().sum(-1)  # (B, H, i, j)
    cost = 0.3 * (means - v).square().sum() + (w * spread).sum()
    (slope,) = torch.autograd.grad(cost, means)
    assert_close(slope, torch.zeros_like(slope), atol=1e-12, rtol=0)


def test_firmly_held_values_are_not_propagated():
    held = make(("probabilistic", {"value_propagation": True, "value_strength": 1e12}, False))
    q, k, v = heads()
    assert_close(held.attend(q, k, v), make(("probabilistic", {}, False)).attend(q, k, v), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("field", ["key_strength", "value_strength", "value_precision"])
def test_strengths_must_be_positive(field):
    with pytest.raises(ValueError, match=f"{field}=0 must be a positive number"):
        build_attention("probabilistic", HIDDEN, HEADS, **{field: 0})


def test_adaptation_cannot_be_causal():
    with pytest.raises(ValueError, match=r"causal=True with key_iterations=2 \(mixes all queries\): use 0"):
        build_attention("probabilistic", HIDDEN, HEADS, causal=True, key_iterations=2)
    with pytest.raises(ValueError, match=r"causal=True with value_propagation=True \(mixes all queries\): use False"):
        build_attention("probabilistic", HIDDEN, HEADS, causal=True, value_propagation=True)
