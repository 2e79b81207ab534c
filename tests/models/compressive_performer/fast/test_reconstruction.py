"""What queries lose when keys and values become fewer: the loss, its gradient, and what is kept for it."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from hf_efficient.attention import build_attention
from hf_efficient.models.compressive_performer.compression import look_at, reconstruction_loss
from hf_efficient.models.compressive_performer.fast.reconstruction import fast_reconstruction_loss, loss_of_states
from hf_efficient.models.compressive_performer.fast.switch import switched_off

MECHANISMS = {
    "performer": {"num_features": 24},
    "performer, relu": {"features": "relu"},
    "performer, with a maximum": {"epsilon": 0.0},
    "linear_elu": {},
}
every_mechanism = pytest.mark.parametrize("name", MECHANISMS)


def build(name, **options):
    return build_attention(name.split(",")[0], 16, 2, causal=True, projections=False, **options)


def heads(length, batch=3, dtype=torch.float64):
    """(B, H, N, D), in memory (B, N, H, D)"""
    return torch.randn(batch, length, 2, 8, dtype=dtype).transpose(1, 2)


def literal(attention, q, before, after):
    """By the formula over N × N weights"""
    seen = []
    for k, v in (before, after):
        phi_q, phi_k = attention.literal_features(q, k, None, None)
        scores = phi_q @ phi_k.mT
        seen.append(scores / scores.sum(-1, keepdim=True) @ v)
    return (seen[1] - seen[0]).square().mean()


def assert_same_loss(attention, q, before, after, expected, **tolerance):
    leaves = [x.detach().clone().requires_grad_() for x in after]
    loss, wanted = reconstruction_loss(attention, q, before, leaves), expected(attention, q, before, leaves)
    assert_close(loss, wanted, **tolerance)
    assert_close(*(torch.autograd.grad(3 * x, leaves) for x in (loss, wanted)), **tolerance)


@every_mechanism
@pytest.mark.parametrize("queries", [1, 5, 37])
@pytest.mark.parametrize("elements", [2**20, 2**9], ids=["at once", "in chunks"])
def test_loss_and_gradient_are_the_formulas(name, queries, elements, monkeypatch):
    torch.manual_seed(0)
    for module in ("linear.tile", "models.compressive_performer.fast.reconstruction"):
        monkeypatch.setattr(f"hf_efficient.{module}.TILE", elements)
    attention = build(name, **MECHANISMS[name])
    slots = [(heads(n), heads(n)) for n in (12, 4)]
    q = heads(queries)
    assert_same_loss(attention, q, *slots, literal, atol=1e-9, rtol=1e-6)
    with switched_off():
        assert fast_reconstruction_loss(attention, q, *slots) is None
        assert_same_loss(attention, q, *slots, literal, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "efficient", "cosformer"])
def test_mechanisms_without_a_short_way_compare_outputs(name):
    attention, q = build(name).double(), heads(6)
    (k, v), after = (heads(12), heads(12)), [heads(4), heads(4)]
    assert fast_reconstruction_loss(attention, q, (k, v), after) is None
    expected = F.mse_loss(look_at(attention, q, *after), look_at(attention, q, k, v))
    assert_close(reconstruction_loss(attention, q, (k, v), after), expected, atol=1e-9, rtol=1e-6)


def test_queries_that_see_nothing_lose_nothing():
    attention = build("performer", features="relu")
    nothing = attention.initial_state(3, dtype=torch.float64)["S"].requires_grad_()
    loss = loss_of_states(heads(5), torch.zeros_like(nothing), nothing, attention.feature_map, 0.0)
    loss.backward()
    assert loss == 0 and nothing.grad.isfinite().all()


def test_nothing_as_large_as_the_queries_features_is_kept():
    attention = build("performer", num_features=24)
    q, before = heads(400, dtype=torch.float32), (heads(40, dtype=torch.float32), heads(40, dtype=torch.float32))
    after = [heads(10, dtype=torch.float32).requires_grad_() for _ in range(2)]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        reconstruction_loss(attention, q, before, after).backward()
    assert max(kept) < 400 * 24


@pytest.mark.parametrize("learning", ["q", "before"])
def test_other_gradients_take_the_long_way(learning):
    attention, q = build("performer", num_features=24), heads(6)
    before, after = ([heads(n), heads(n)] for n in (12, 4))
    leaf = (q if learning == "q" else before[0]).requires_grad_()
    wanted = torch.autograd.grad(literal(attention, q, before, after), leaf)
    assert_close(
        torch.autograd.grad(reconstruction_loss(attention, q, before, after), leaf), wanted, atol=1e-7, rtol=1e-4
    )


def test_under_autocast():
    attention, q = build("performer", num_features=24), heads(6, dtype=torch.float32)
    slots = [[heads(n, dtype=torch.float32) for _ in range(2)] for n in (12, 4)]
    exact = reconstruction_loss(attention, q, *slots)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(reconstruction_loss(attention, q, *slots), exact)
        low = reconstruction_loss(attention, q.bfloat16(), *([x.bfloat16() for x in pair] for pair in slots))
    assert_close(low, exact, atol=0.0, rtol=0.05)
