"""YOSO: what collisions estimate, and the derivative that stands in for that of a jump."""

import math

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close

from hf_efficient.attention import build_attention
from hf_efficient.attention.yoso import expectation, share_buckets


def heads(length):
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, HEADS, length, 8, dtype=torch.float64, generator=generator) for _ in range(3))


def yoso(**options):
    return make(("yoso", options, False))


def test_collisions_approach_their_expectation():
    q, k, _ = heads(12)
    w = (1 - F.cosine_similarity(q.unsqueeze(3), k.unsqueeze(2), dim=-1).arccos() / math.pi) ** 3
    eye = torch.eye(12, dtype=q.dtype).expand(2, HEADS, -1, -1)
    errors = []
    for m in (32, 32 * 64):
        attention = yoso(num_hashes=m, hash_bits=3)
        codes = [attention.codes(x, attention.hyperplanes) for x in (q, k)]
        B = share_buckets(*codes, eye, 3)  # the values are the unit vectors
        assert ((B - w) / (w * (1 - w) / m).sqrt()).abs().max() < 5
        errors.append((B - w).norm())
    assert 4 < errors[0] / errors[1] < 16  # √64
    assert_close(expectation(F.normalize(q, dim=-1), F.normalize(k, dim=-1), 3), w)


def test_the_stand_in_is_below_the_derivative_and_finite():
    x = torch.linspace(-1, 1, 201, dtype=torch.float64)[1:-1].requires_grad_()
    w = (1 - x.arccos() / math.pi) ** 8
    (slope,) = torch.autograd.grad(w.sum(), x)
    assert (8 / 2 * w <= slope).all() and (slope < 4 * 8 / 2 * w)[50:150].all()


def test_outputs_have_length_one():
    q, k, v = heads(30)
    assert_close(yoso().attend(q, k, 100 * v).norm(dim=-1), torch.ones(2, HEADS, 30, dtype=q.dtype))


def test_blocks_of_queries_add_up(monkeypatch):
    x = tokens(2, 20).requires_grad_()
    attention, found = yoso(num_hashes=0), []
    for size in (256, 7):
        monkeypatch.setattr("hf_efficient.attention.yoso.BLOCK", size)
        output = attention(x).hidden_states
        found.append((output, *torch.autograd.grad(output.square().sum() + output.sum(), x)))
    assert_close(*found)


def test_gradients_from_some_queries_are_right_on_average(monkeypatch):
    """21 queries, every fourth of them: the mean over the four places to begin is the gradient from all."""
    leaves = [x.requires_grad_() for x in heads(21)]

    def gradients(**options):
        output = yoso(num_hashes=3, hash_bits=2, **options).attend(*leaves)
        return torch.autograd.grad(output[..., 0].sum() + output.square().sum(), leaves)

    found = []
    for start in range(4):
        monkeypatch.setattr("hf_efficient.attention.yoso.Yoso.sampled", lambda self, n, a=start: slice(a, None, 4))
        found.append(gradients())
        assert found[-1][0][:, :, start::4].abs().amin() > 0
        assert found[-1][0].count_nonzero() == found[-1][0][:, :, start::4].numel()
    monkeypatch.undo()
    for some, exact in zip(zip(*found, strict=True), gradients(), strict=True):
        assert_close(torch.stack(some).mean(0), exact)


def test_which_queries_make_the_gradient():
    attention = yoso(gradient_queries=5)
    assert attention.sampled(5) == slice(0, None, 1), "as many as there are: exact"
    assert attention.sampled(21) == slice(2, None, 5)
    attention.train()
    assert {attention.sampled(21).start for _ in range(99)} == set(range(5))
    assert yoso(num_hashes=0, gradient_queries=5).sampled(21).step == 1, "the expectation is quadratic anyway"


def test_training_draws_hyperplanes_and_evaluation_keeps_them():
    attention, x = yoso(num_hashes=2), tokens(2, 20)
    kept = attention(x)[0]
    attention.train()
    assert not torch.equal(attention(x)[0], attention(x)[0])
    assert torch.equal(attention.eval()(x)[0], kept)
    other = build_attention("yoso", HIDDEN, HEADS, num_hashes=2, layer_idx=1)
    assert not torch.equal(other.hyperplanes, attention.hyperplanes.float())


def test_buckets_are_few_enough():
    with pytest.raises(ValueError, match="hash_bits=17 must be an integer from 1 to 16"):
        build_attention("yoso", HIDDEN, HEADS, hash_bits=17)
