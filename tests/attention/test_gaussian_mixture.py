"""Mixture of Gaussian keys: when it is plainer attention, its variants, and π under EM."""

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from hf_efficient.attention import build_attention, gaussian_mixture

both_ways = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def heads(length=14, width=8):
    return tuple(torch.randn(2, HEADS, length, width, dtype=torch.float64) for _ in range(3))


def mixture(causal=False, **options):
    return make(("gaussian_mixture", options, causal))


def densities(attention, q, k, pi, sigma2):
    """π_r σ_r^{-D} exp(−‖q_i − k_jr‖²/2σ_r²), (B, H, N, N, R)"""
    distance = (q[:, :, :, None, None] - attention.components(k).unsqueeze(2)).square().sum(-1)
    pi, sigma2 = (x.T[:, None, None] for x in (pi, sigma2))  # (R, H) -> (H, 1, 1, R)
    return pi * sigma2 ** (-attention.head_dim / 2) * torch.exp(-distance / (2 * sigma2))


def attended(scores, v, causal):
    scores = scores.tril() if causal else scores
    return scores / scores.sum(-1, keepdim=True) @ v


@both_ways
@pytest.mark.parametrize("options", [{}, {"mode": "em"}, {"linear": True}], ids=["soft", "em", "linear"])
def test_identical_keys_are_one_key(options, causal):
    many, one = mixture(causal, num_keys=3, **options), mixture(causal, num_keys=1, **options)
    with torch.no_grad():
        many.shifts.zero_()
    q, k, v = heads()
    assert_close(many.attend(q, k, v), one.attend(q, k, v), atol=1e-11, rtol=1e-9)


@both_ways
def test_unit_keys_and_one_component_are_softmax_attention(causal):
    q, k, v = heads()
    k = F.normalize(k, dim=-1)
    attention = mixture(causal, num_keys=1)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)  # 1/σ² = 1/√D
    assert_close(attention.attend(q, k, v), expected, atol=1e-11, rtol=1e-9)
    assert (attention.attend(q, 2 * k * torch.rand(14, 1).double(), v) - expected).abs().max() > 1e-2


@both_ways
@pytest.mark.parametrize("keys", ["shift", "multi"])
@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_the_formula(keys, mode, causal):
    attention = mixture(causal, num_keys=3, keys=keys, mode=mode, learn_variance=True)
    q, k, v = heads()
    if keys == "multi":
        k = torch.randn(2, HEADS, 14, 3 * 8, dtype=torch.float64)
    pi, sigma2 = attention.mixture_logits.softmax(0), F.softplus(attention.variance)
    assert sigma2.std(0).min() > 0.05, "unequal variances, whose ‖q‖²/2σ² do not cancel"
    parts = densities(attention, q, k, pi, sigma2)
    expected = attended(parts.amax(-1) if mode == "hard" else parts.sum(-1), v, causal)
    assert_close(attention.attend(q, k, v), expected, atol=1e-11, rtol=1e-9)


def test_the_components():
    q, k, _ = heads()
    attention = mixture(num_keys=3)
    parts = attention.components(k)
    assert torch.equal(parts[..., 0, :], k), "the first key is not shifted"
    assert_close(parts[..., 2, :], k - attention.shifts[1].unsqueeze(1))
    multi = mixture(num_keys=3, keys="multi")
    x = tokens(2, 5)
    assert multi.k_proj.weight.shape == (3 * HIDDEN, HIDDEN)
    assert_close(multi.components(multi.project(x)[1])[:, 1, :, 2], multi.k_proj(x)[..., 5 * 8 :], atol=0, rtol=0)
    assert abs(build_attention("gaussian_mixture", 512, 8, num_keys=3).shifts.std() - 0.5) < 0.05


def test_hard_bounds_soft():
    attention, hard = mixture(num_keys=3), mixture(num_keys=3, mode="hard")
    logits = torch.randn(2, HEADS, 5, 5, 3, dtype=torch.float64)
    low, high = hard.combine(logits), attention.combine(logits)
    assert (low < high).all()
    assert (high < low + torch.tensor(3.0).log()).all()


@both_ways
@pytest.mark.parametrize("keys", ["shift", "multi"])
def test_linear_features_add_up(keys, causal):
    attention = mixture(causal, num_keys=3, keys=keys, linear=True)
    q, k, v = heads()
    if keys == "multi":
        k = torch.randn(2, HEADS, 14, 3 * 8, dtype=torch.float64)
    pi = attention.mixture_logits.softmax(0).T[:, None, :, None]  # (H, 1, R, 1)
    phi_k = (pi * (F.elu(attention.components(k)) + 1)).sum(-2)
    assert_close(attention.attend(q, k, v), attended((F.elu(q) + 1) @ phi_k.mT, v, causal), atol=1e-11, rtol=1e-9)
    assert attention.supports_recurrent
    assert not mixture(causal).supports_recurrent
    for options in ({"mode": "hard"}, {"learn_variance": True}):
        with pytest.raises(ValueError, match="linear=True"):
            build_attention("gaussian_mixture", HIDDEN, HEADS, linear=True, **options)


@both_ways
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_em_moves_the_mixture_towards_the_responsibilities(causal, masked):
    attention = mixture(causal, num_keys=3, mode="em", em_rate=0.25).train()
    assert "mixture" not in dict(attention.named_parameters())
    attention.mixture.copy_(torch.tensor([[0.5, 0.2], [0.3, 0.2], [0.2, 0.6]]))
    before = attention.mixture.clone()
    q, k, v = heads()
    mask = None
    valid = torch.ones(2, 14, 14, dtype=torch.float64)
    if masked:
        mask = torch.arange(14) < torch.tensor([[14], [9]])
        valid = valid * mask[:, None] * mask[:, :, None]
    valid = valid.tril() if causal else valid
    parts = densities(attention, q, k, before, torch.full_like(before, 8**0.5))
    gamma = parts / parts.sum(-1, keepdim=True)
    mean = torch.einsum("bhijr,bij->rh", gamma, valid) / valid.sum()
    attention.attend(q, k, v, key_mask=mask)
    assert_close(attention.mixture, 0.75 * before + 0.25 * mean, atol=1e-6, rtol=1e-6)
    for _ in range(20):
        attention.attend(*heads(), key_mask=mask)
        assert_close(attention.mixture.sum(0), torch.ones(HEADS, dtype=torch.float64), atol=1e-6, rtol=0)
        assert (attention.mixture > 0).all()
    kept = attention.mixture.clone()
    attention.eval().attend(q, k, v)
    assert torch.equal(attention.mixture, kept), "evaluation does not move it"


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_em_under_checkpointing_counts_every_forward_once(use_reentrant):
    def steps(run):
        gradients = []
        for step in range(3):
            x = tokens(2, 9, seed=step).requires_grad_()
            run(x).square().sum().backward()
            gradients.append(x.grad)
        return gradients

    plain, saving = (mixture(num_keys=2, mode="em", em_rate=0.5).train() for _ in range(2))
    saving.load_state_dict(plain.state_dict())
    expected = steps(lambda x: plain(x).hidden_states)
    found = steps(lambda x: checkpoint(lambda y: saving(y).hidden_states, x, use_reentrant=use_reentrant))
    assert_close(saving.mixture, plain.mixture, atol=1e-12, rtol=0)
    assert_close(found, expected, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"mode": "hard"}], ids=["soft", "hard"])
def test_more_queries_than_a_block(options, monkeypatch):
    assert gaussian_mixture.QUERY_BLOCK < 530
    attention, x = mixture(True, **options), tokens(1, 530).requires_grad_()
    outputs = attention(x).hidden_states, attention.reference(x)
    assert_close(*outputs, atol=1e-9, rtol=1e-9)
    monkeypatch.setattr(gaussian_mixture, "QUERY_BLOCK", 100)
    outputs = outputs[0], attention(x).hidden_states
    assert_close(*outputs, atol=1e-11, rtol=1e-9)
    assert_close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in outputs), atol=1e-9, rtol=1e-9)
