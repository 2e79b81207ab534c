from itertools import pairwise

import pytest
import torch

from hf_efficient.layers import TokenPooling

METHODS = ["kmeans", "kmedoids"]


def objective(x, centres, w):
    return (w * torch.cdist(x, centres).square().amin(-1)).sum()


def as_set(centres):
    """(B, K, d), sorted by the first channel"""
    order = centres[..., 0].argsort(1)
    return centres.gather(1, order.unsqueeze(-1).expand_as(centres))


def tokens(batch=2, length=21, dim=6):
    return torch.randn(batch, length, dim, dtype=torch.float64)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_tokens", [20, 100])
def test_as_many_centres_as_tokens_changes_nothing(method, num_tokens):
    x = tokens()
    pooled = TokenPooling(num_tokens, method)(x)
    torch.testing.assert_close(pooled.hidden_states, x)
    assert torch.equal(pooled.assignments, torch.arange(20).expand(2, 20))


@pytest.mark.parametrize("method", METHODS)
def test_objective_falls(method):
    x, w = tokens(3, 60), torch.rand(3, 60, dtype=torch.float64)
    pool = [TokenPooling(8, method, iterations=t, num_prefix_tokens=0) for t in range(1, 8)]
    values = [objective(x, p(x, w).hidden_states, w) for p in pool]
    assert all(after <= before + 1e-12 for before, after in pairwise(values))
    assert values[-1] < values[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("weighted", [True, False])
def test_the_order_of_tokens_is_immaterial(method, weighted):
    x, permutation = tokens(2, 30), torch.randperm(30)
    w = torch.rand(2, 30, dtype=torch.float64) if weighted else None
    pool = TokenPooling(7, method, num_prefix_tokens=0)
    centres = pool(x, w).hidden_states
    permuted = pool(x[:, permutation], w[:, permutation] if weighted else None).hidden_states
    torch.testing.assert_close(as_set(permuted), as_set(centres))


def test_ties_of_medoids_are_not_broken_by_rounding():
    x = tokens(200, 12)  # many clusters of two, whose members are equally near to their mean
    pool, permutation = TokenPooling(7, "kmedoids", num_prefix_tokens=0), torch.randperm(12)
    torch.testing.assert_close(as_set(pool(x[:, permutation]).hidden_states), as_set(pool(x).hidden_states))


def test_centres():
    x, w = tokens(1, 13), torch.rand(1, 13, dtype=torch.float64)
    means, medoids = TokenPooling(4)(x, w), TokenPooling(4, "kmedoids")(x, w)
    for t in range(4):
        inside = means.assignments[0] == t
        mean = (w[0, 1:, None] * x[0, 1:])[inside].sum(0) / w[0, 1:][inside].sum()
        torch.testing.assert_close(means.hidden_states[0, 1 + t], mean)
        inside = medoids.assignments[0] == t
        members, weight = x[0, 1:][inside], w[0, 1:][inside]
        costs = (weight * torch.cdist(members, members).square()).sum(-1)
        torch.testing.assert_close(medoids.hidden_states[0, 1 + t], members[costs.argmin()])


def test_the_prefix_is_passed_on():
    x = tokens()
    pooled = TokenPooling(5, num_prefix_tokens=2)(x)
    assert pooled.hidden_states.shape == (2, 7, 6)
    assert pooled.assignments.shape == (2, 19)
    assert pooled.key_mask is None
    assert torch.equal(pooled.hidden_states[:, :2], x[:, :2])


def test_attention_weighs_by_its_column_sums():
    x, attention = tokens(), torch.randn(2, 3, 21, 21, dtype=torch.float64).softmax(-1)
    pool = TokenPooling(5)
    torch.testing.assert_close(pool(x, attention).hidden_states, pool(x, attention.sum((1, 2))).hidden_states)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_flow(method):
    x, w = tokens().requires_grad_(), torch.rand(2, 21, dtype=torch.float64)
    pooled = TokenPooling(5, method)(x, w)
    pooled.hidden_states.sum().backward()
    torch.testing.assert_close(x.grad[:, 1:].sum(1), torch.full((2, 6), 5.0, dtype=torch.float64))  # rows of means
    assert (x.grad[:, 0] == 1).all()
    if method == "kmeans":
        assert (x.grad != 0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", ["attention", "significance", "none"])
def test_masked_tokens_have_no_influence(method, shape):
    x, pool = tokens(1, 15), TokenPooling(5, method)
    attention = torch.randn(1, 2, 15, 15, dtype=torch.float64).softmax(-1)
    expected = pool(x, {"attention": attention, "significance": attention.sum((1, 2)), "none": None}[shape])
    padded = torch.nn.functional.pad(x, (0, 0, 0, 4), value=float("nan"))
    attention = torch.nn.functional.pad(attention, (0, 4, 0, 4), value=float("nan"))
    w = {"attention": attention, "significance": attention[..., :15, :].sum((1, 2)), "none": None}[shape]
    pooled = pool(padded, w, torch.arange(19).unsqueeze(0) < 15)
    torch.testing.assert_close(pooled.hidden_states, expected.hidden_states)
    assert torch.equal(pooled.assignments[:, :14], expected.assignments)
    assert (pooled.assignments[:, 14:] == -1).all()
    assert pooled.key_mask.all()


def test_fewer_real_tokens_than_centres_leaves_masked_centres():
    x, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.bool)
    mask[1, 4:] = False  # CLS and 3 patches are real
    pooled = TokenPooling(6)(x.masked_fill(~mask.unsqueeze(-1), torch.nan), None, mask)
    assert pooled.key_mask.sum(1).tolist() == [7, 4]
    assert pooled.hidden_states.isfinite().all()
    torch.testing.assert_close(as_set(pooled.hidden_states[1][pooled.key_mask[1]][None, 1:]), as_set(x[1:, 1:4]))


def test_rows_do_not_mix():
    x, pool = tokens(), TokenPooling(5)
    torch.testing.assert_close(pool(x).hidden_states[1:], pool(x[1:]).hidden_states)


def test_a_common_offset_does_not_move_clusters():
    x = torch.randn(1, 40, 8)
    assert torch.equal(TokenPooling(6)(x).assignments, TokenPooling(6)(x + 1000).assignments)


def test_half_precision():
    pooled = TokenPooling(5)(tokens().bfloat16())
    assert pooled.hidden_states.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_tokens": 0}, "num_tokens=0"),
        ({"num_tokens": 4, "method": "median"}, "method='median'"),
        ({"num_tokens": 4, "iterations": 0}, "iterations=0"),
        ({"num_tokens": 4, "num_prefix_tokens": -1}, "num_prefix_tokens=-1"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        TokenPooling(**options)


def test_wrong_inputs_are_named():
    with pytest.raises(ValueError, match="leaves no token to pool"):
        TokenPooling(4)(tokens(2, 1))
    with pytest.raises(ValueError, match=r"got \(2, 20\)"):
        TokenPooling(4)(tokens(), torch.ones(2, 20))
