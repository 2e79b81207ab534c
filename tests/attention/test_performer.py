"""FAVOR+: the law of Ω, what the features estimate, and how they are stabilised. Redraws: test_performer_redraw.py."""

import math

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, make, tokens
from torch.testing import assert_close

from hf_efficient.attention import build_attention
from hf_efficient.linear.favor_plus import orthogonal_features

both_ways = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def bare(num_features, head_dim=8, **options):
    """The mechanism alone, one head, with features that estimate without bias."""
    options = {"epsilon": 0.0, **options}
    return build_attention("performer", head_dim, 1, num_features=num_features, projections=False, **options)


def heads(length, width=8, scale=1.0, batch=2, count=1):
    return tuple(scale * torch.randn(batch, count, length, width, dtype=torch.float64) for _ in range(3))


def z_score(samples):
    return samples.mean(0) / samples.std(0) * len(samples) ** 0.5


def draw(num_features, dim, norms):
    return orthogonal_features(num_features, dim, norms, torch.Generator().manual_seed(5)).double()


@pytest.mark.parametrize("norms", ["chi", "sqrt"])
def test_rows_are_orthogonal_in_blocks(norms):
    omega = draw(20, 8, norms)
    assert omega.shape == (20, 8)
    for block in omega.split(8):
        directions = F.normalize(block, dim=-1)
        assert_close(directions @ directions.T, torch.eye(len(block), dtype=omega.dtype), atol=1e-6, rtol=0)


def test_row_norms():
    assert_close(draw(20, 8, "sqrt").norm(dim=-1), torch.full((20,), 8**0.5, dtype=torch.float64), atol=1e-6, rtol=0)
    squares = draw(4000, 8, "chi").square().sum(-1)  # χ²_8: mean 8, variance 16
    assert abs(squares.mean() - 8) < 4 * (16 / 4000) ** 0.5
    assert abs(squares.var() / 16 - 1) < 0.2


def test_omega_has_no_preferred_direction():
    """QR without its signs has a diagonal of mean −0.2: not Haar."""
    blocks = draw(8 * 3000, 8, "sqrt").view(3000, 8, 8)
    assert z_score(blocks.diagonal(dim1=1, dim2=2)).abs().max() < 4
    assert z_score(blocks.diagonal(dim1=1, dim2=2).mean(-1)).abs() < 4
    assert abs(blocks.square().mean() - 1) < 1e-6


def kernel_estimates(attention, q, k, features):
    """φ(q)·φ(k)/m from each `features` of a draw, over e^{q·k/√D}: (estimates, pairs)."""
    phi_q, phi_k = attention.literal_features(q, k, None, None)
    truth = torch.exp((q * k).sum(-1) / q.shape[-1] ** 0.5)
    return ((phi_q * phi_k).unflatten(-1, (-1, features)).mean(-1) / truth.unsqueeze(-1)).flatten(0, -2).T


def test_the_kernel_estimate_is_unbiased():
    q, k, _ = heads(4, scale=0.7)
    estimates = kernel_estimates(bare(8 * 4000, seed=3), q, k, 8)
    assert estimates.shape == (4000, 8)
    assert z_score(estimates - 1).abs().max() < 4
    biased = kernel_estimates(bare(8 * 4000, seed=3, epsilon=0.3), q, k, 8)
    assert z_score(biased - 1).abs().max() > 10, "the test can tell"


def test_the_variance_falls_with_the_number_of_features():
    q, k, _ = heads(2, scale=0.4)
    spread = {}
    for m in (16, 64):
        attention, estimates = bare(m), []
        for index in range(500):
            attention.redraw(index)
            estimates.append(kernel_estimates(attention, q, k, m))
        spread[m] = torch.cat(estimates).std(0)
    ratio = (spread[16] / spread[64]).mean()
    assert abs(ratio / 2 - 1) < 0.25, ratio


@both_ways
def test_it_approaches_softmax_attention_as_features_grow(causal):
    q, k, v = heads(24, scale=0.3)
    exact = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    errors = []
    for m in (16, 256, 4096):
        seeds = [(bare(m, causal=causal, seed=s).attend(q, k, v) - exact).norm() / exact.norm() for s in range(3)]
        errors.append(sum(seeds) / 3)
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.05


def test_default_number_of_features():
    assert build_attention("performer", 64, 1).num_features == 266
    assert build_attention("performer", 2, 2).num_features == 1


def log_kernel(attention, q, k):
    """log φ(q)·φ(k) at ε = 0, in log space: (B, H, N, N)."""
    logs = []
    for x in (q, k):
        x = x / attention.head_dim**0.25
        logs.append(x @ attention.projection.double().T - x.square().sum(-1, keepdim=True) / 2)
    return (logs[0].unsqueeze(-2) + logs[1].unsqueeze(-3)).logsumexp(-1)


@both_ways
def test_large_inputs_without_epsilon_are_exact(causal):
    q, k, v = heads(70, scale=12.0)
    attention = bare(17, causal=causal)
    logits = log_kernel(attention, q, k)
    assert logits.amin() < -700, "plain exponentials would vanish"
    if causal:
        logits = logits.masked_fill(torch.ones(70, 70, dtype=torch.bool).triu(1), -torch.inf)
    assert_close(attention.attend(q, k, v), logits.softmax(-1) @ v, atol=1e-9, rtol=1e-9)


def test_running_maxima_may_rise_far_within_a_chunk():
    """Log-features from −300 for early keys to 0 for late ones: relative to the late, float32 loses the early."""
    q, k, v = heads(70)
    k = k * torch.linspace(12, 0.5, 70).unsqueeze(-1)
    attention = bare(17, causal=True)
    logits = log_kernel(attention, q, k).masked_fill(torch.ones(70, 70, dtype=torch.bool).triu(1), -torch.inf)
    found = attention.attend(q.float(), k.float(), v.float())
    assert_close(found.double(), logits.softmax(-1) @ v, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("epsilon", [1e-3, 0.0])
def test_huge_future_keys_leave_the_past_alone(epsilon):
    attention = bare(19, causal=True, epsilon=epsilon)
    q, k, v = (x.float() for x in heads(90))
    before = attention.attend(q, k, v)
    for t in (1, 30, 64, 89):
        huge, other = k.clone(), v.clone()
        huge[:, :, t:] *= 100
        other[:, :, t:] += 50
        assert_close(attention.attend(q, huge, other)[:, :, :t], before[:, :, :t], atol=2e-6, rtol=1e-5)


@both_ways
def test_masked_keys_leave_the_denominator(causal):
    attention = bare(19, causal=causal, epsilon=1e-3)
    q, k, v = heads(30)
    mask = torch.arange(30).expand(2, 30) % 3 > 0
    output = attention.attend(q, k, torch.ones_like(v), key_mask=mask)
    assert_close(output[:, :, 1:], torch.ones_like(output[:, :, 1:]), atol=1e-12, rtol=0)


@both_ways
def test_epsilon_is_an_absolute_floor(causal):
    q, k, v = heads(30)
    attention = bare(19, causal=causal, epsilon=0.25)
    phi_q, phi_k = (
        torch.exp(x @ attention.projection.double().T / 8**0.25 - x.square().sum(-1, keepdim=True) / 8**0.5 / 2) + 0.25
        for x in (q, k)
    )
    scores = phi_q @ phi_k.mT
    scores = scores.tril() if causal else scores
    assert_close(attention.attend(q, k, v), scores @ v / scores.sum(-1, keepdim=True), atol=1e-11, rtol=1e-9)
    uniform = torch.ones(30, 30, dtype=v.dtype).tril() if causal else torch.ones(30, 30, dtype=v.dtype)
    uniform = uniform / uniform.sum(-1, keepdim=True)
    assert_close(bare(19, causal=causal, epsilon=1e9).attend(q, k, v), uniform @ v, atol=1e-6, rtol=1e-6)


@both_ways
def test_relu_features(causal):
    attention = bare(19, causal=causal, features="relu")
    q, k, v = heads(30)
    phi_q, phi_k = (F.relu(x / 8**0.25 @ attention.projection.double().T) + 1e-3 for x in (q, k))
    scores = phi_q @ phi_k.mT
    scores = scores.tril() if causal else scores
    assert_close(attention.attend(q, k, v), scores @ v / scores.sum(-1, keepdim=True), atol=1e-11, rtol=1e-9)
    state = attention.initial_state(2)
    assert set(state) == {"S"}, "no running maximum is needed"


def test_a_rotation_of_queries_and_keys_depends_on_their_distance_only():
    """What makes rotary positions before φ exact: norms are kept, so E φ(Rq)·φ(Rk) = e^{Rq·Rk/√D}."""
    q, k, _ = heads(1, scale=0.7)
    angle = torch.tensor(0.4, dtype=torch.float64)
    rotation = torch.eye(8, dtype=torch.float64)
    rotation[:2, :2] = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(2, 2)
    estimates = kernel_estimates(bare(8 * 4000, seed=4), q @ rotation, k @ rotation @ rotation, 8)
    truth = torch.exp((q * (k @ rotation)).sum(-1) / 8**0.5) / torch.exp(
        ((q @ rotation) * (k @ rotation @ rotation)).sum(-1) / 8**0.5
    )
    assert_close(truth, torch.ones_like(truth))
    assert z_score(estimates - 1).abs().max() < 4


@pytest.mark.parametrize("cast", [lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.double()])
def test_omega_stays_float32(cast):
    attention = make(("performer", {}, False), torch.float32)
    omega = attention.projection.clone()
    outer = cast(torch.nn.Sequential(attention))
    assert outer[0].projection.dtype == torch.float32
    assert torch.equal(outer[0].projection, omega)
    assert outer[0].q_proj.weight.dtype != torch.float32
    assert torch.equal(outer.float()[0].projection, omega)


def test_a_moved_module_uses_its_own_omega():
    """The feature map follows the buffer: loading other weights changes the output."""
    one, other = (make(("performer", {}, False), seed=s) for s in (0, 1))
    x = tokens(2, 12)
    assert (one(x)[0] - other(x)[0]).abs().max() > 1e-3
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x)[0], other(x)[0])
    assert math.isclose(one.feature_map.floor, 1e-3)
    assert one.feature_map.num_features(8) == one.num_features == int(8 * math.log(8))
    assert one.num_heads == HEADS
