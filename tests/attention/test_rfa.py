"""RFA: what its features estimate, the floor under the sum, and the gate."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close

from hf_efficient.attention import build_attention


def heads(length, batch=1):
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(batch, HEADS, length, 8, dtype=torch.float64, generator=generator) for _ in range(3))


def bare(**options):
    return build_attention("rfa", HIDDEN, HEADS, projections=False, **options).double().eval()


def test_the_kernel_estimate_is_unbiased():
    attention, (q, k, _) = bare(num_features=8 * 4000), heads(3)
    with torch.no_grad():
        attention.sigma.copy_(torch.linspace(0.5, 1.5, 16, dtype=torch.float64).view(HEADS, 8))
    angles = (attention.sigma.unsqueeze(1) * (F.normalize(q, dim=-1) - F.normalize(k, dim=-1))).unsqueeze(-2)
    truth = torch.exp(-angles.squeeze(-2).square().sum(-1) / 2)
    found = (attention.sines(q) * attention.sines(k)).sum(-1)
    estimates = (angles @ attention.projection.double().mT.unsqueeze(1)).cos().squeeze(-2)  # one per row of Ω
    blocks = estimates.unflatten(-1, (4000, 8)).mean(-1)  # rows are independent of other blocks only
    assert_close(found, estimates.mean(-1))
    assert ((blocks.mean(-1) - truth) / blocks.std(-1) * 4000**0.5).abs().max() < 4


def test_with_many_features_it_is_the_gaussian_kernel():
    q, k, v = heads(20)
    exact = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1) @ v
    errors = [(bare(num_features=m).attend(q, k, v) - exact).norm() / exact.norm() for m in (16, 16 * 256)]
    assert errors[0] > 4 * errors[1] and errors[1] < 0.05


def test_a_sum_that_vanishes_is_held_up():
    attention, (q, k, v) = bare(num_features=1), heads(1)
    with torch.no_grad():
        attention.sigma.mul_(3)
    score = attention.weights(q, k)
    few = (attention.sines(q) * attention.sines(k)).sum(-1, keepdim=True)
    assert_close(score, torch.where(few > 1e-3, 1.0, few / 1e-3))
    mask = torch.zeros(1, 1, dtype=torch.bool)
    assert not attention.attend(q, k, v, key_mask=mask).any()


def test_the_gate_forgets():
    attention, (q, k, v) = make(("rfa", {"gate": True}, True)), heads(30)
    gate = torch.sigmoid((k * attention.gate_weight.unsqueeze(1)).sum(-1) + attention.gate_bias[:, None])
    phi_q, phi_k = attention.sines(q), attention.sines(k)
    S, z, n, steps = 0.0, 0.0, 0.0, []
    for t in range(30):
        g = gate[:, :, t, None]
        S = g.unsqueeze(-1) * S + (1 - g).unsqueeze(-1) * phi_k[:, :, t, :, None] * v[:, :, t, None]
        z, n = g * z + (1 - g) * phi_k[:, :, t], g * n + (1 - g)
        total = torch.maximum((phi_q[:, :, t] * z).sum(-1, keepdim=True), 1e-3 * n)
        steps.append((phi_q[:, :, t].unsqueeze(-2) @ S).squeeze(-2) / total)
    assert_close(attention.attend(q, k, v), torch.stack(steps, 2), atol=1e-10, rtol=1e-10)
    with torch.no_grad():
        attention.gate_bias.fill_(-30)
    assert_close(attention.attend(q, k, v), v, atol=1e-9, rtol=1e-9)  # only the token itself is left


def test_long_forgetful_texts_stay_finite_in_float32():
    attention = make(("rfa", {"gate": True}, True), torch.float32)
    with torch.no_grad():
        attention.gate_bias.fill_(-60)  # Σ log g leaves the range of exp within two tokens
    x = tokens(1, 300, torch.float32).requires_grad_()
    output = attention(x).hidden_states
    output.square().sum().backward()
    assert output.isfinite().all() and x.grad.isfinite().all()


def test_the_gate_is_refused_where_there_is_no_past():
    with pytest.raises(ValueError, match="gate=True forgets earlier tokens: it needs causal=True"):
        build_attention("rfa", HIDDEN, HEADS, gate=True)


def test_redraws():
    attention = build_attention("rfa", HIDDEN, HEADS, redraw_interval=2)
    x, drawn = tokens(1, 4, torch.float32), [attention.projection]
    assert attention.projection.shape == (HEADS, 8, 8)
    for _ in range(4):
        attention(x)
        drawn.append(attention.projection)
    assert [a is not b for a, b in pairwise(drawn)] == [False, True, False, True]
    attention.eval()(x)
    assert attention.projection is drawn[-1]
