import pytest
import torch
from largest_tensor import LargestTensor
from torch import nn

from hf_efficient.attention import build_attention, get_attention, list_attentions
from hf_efficient.layers import AttentionSparsity, attach_sparsity

KINDS = ["entropy", "hoyer"]
SHOWS_WEIGHTS = [
    name
    for name in list_attentions()
    if (cls := get_attention(name)).has_weights() and cls.per_head and not cls.needs_grid
]


class Fixed(nn.Module):
    """Shows the weights it is given."""

    causal = False

    def __init__(self, weights):
        super().__init__()
        self.full = weights

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        return self.full[:, :, rows]


def value(kind, weights, num_rows=32, **where):
    """The sparsity of weights (B, H, N, N)."""
    q = torch.zeros(*weights.shape[:3], 4)
    return AttentionSparsity(kind, num_rows)(Fixed(weights), q, q, query_mask=where.get("key_mask"), **where)


def trained(name, kind="entropy", num_rows=32, **options):
    attention = build_attention(name, 16, 2, **options)
    for projection in (attention.q_proj, getattr(attention, "k_proj", attention.q_proj)):
        nn.init.normal_(projection.weight)
    attention.sparsity = AttentionSparsity(kind, num_rows)
    return attention.train()


@pytest.mark.parametrize("kind", KINDS)
def test_uniform_rows_give_1_and_one_hot_rows_0(kind):
    torch.testing.assert_close(value(kind, torch.full((2, 3, 8, 8), 1 / 8)), torch.tensor(1.0))
    torch.testing.assert_close(value(kind, torch.eye(8).expand(2, 3, 8, 8)), torch.tensor(0.0))


@pytest.mark.parametrize("kind", KINDS)
def test_sharper_rows_give_less(kind):
    logits = torch.randn(1, 2, 9, 9)
    values = [value(kind, (scale * logits).softmax(-1)) for scale in (0.1, 1, 3, 10)]
    assert values == sorted(values, reverse=True)
    assert all(0 < v < 1 for v in values)


def test_formulas():
    p = torch.tensor([0.5, 0.25, 0.25]).expand(1, 1, 3, 3)
    torch.testing.assert_close(value("entropy", p), torch.tensor(1.5).div(torch.tensor(3.0).log2()))
    norm, root = torch.tensor(0.375).sqrt(), 3**0.5
    torch.testing.assert_close(value("hoyer", p), 1 - (root - 1 / norm) / (root - 1))


def test_l1_is_the_same_for_every_softmax_row():
    attention = build_attention("softmax", 16, 2)
    q, k, _ = attention.project(torch.randn(1, 7, 16, requires_grad=True))
    l1 = attention.weights(q, k).abs().sum(-1)
    torch.testing.assert_close(l1, torch.ones_like(l1))
    (grad,) = torch.autograd.grad(l1.sum(), attention.q_proj.weight)
    assert grad.abs().max() < 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SHOWS_WEIGHTS)
def test_gradients_reach_the_projections(kind, name):
    attention = trained(name, kind)
    output = attention(torch.randn(2, 12, 16))
    assert 0 <= output.sparsity <= 1
    output.sparsity.backward()
    for projection in {attention.q_proj, getattr(attention, "k_proj", attention.q_proj)}:
        assert projection.weight.grad.isfinite().all()
        assert projection.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_all_rows_equal_the_full_matrix(kind, causal):
    attention = trained("softmax", kind, num_rows=100, causal=causal)
    x, mask = torch.randn(2, 9, 16), torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    weights = attention(x, mask, output_attentions=True).weights
    expected = []
    for b, h, i in ((b, h, i) for b in range(2) for h in range(2) for i in range(9) if mask[b, i]):
        keys = int(mask[b, : i + 1].sum() if causal else mask[b].sum())
        if keys >= 2:
            p = weights[b, h, i][mask[b]][:keys]
            if kind == "entropy":
                expected.append(-(p * p.log()).sum() / torch.tensor(float(keys)).log())
            else:
                expected.append(1 - (keys**0.5 - 1 / p.norm()) / (keys**0.5 - 1))
    torch.testing.assert_close(attention(x, mask).sparsity, torch.stack(expected).mean())


@pytest.mark.parametrize("name", ["softmax", "linear_elu"])
def test_padding_has_no_influence(name):
    attention = trained(name, num_rows=100)
    x = torch.randn(1, 6, 16)
    padded = nn.functional.pad(x, (0, 0, 3, 0), value=float("nan"))
    sparsity = attention(padded, torch.arange(9).unsqueeze(0) >= 3).sparsity
    torch.testing.assert_close(sparsity, attention(x).sparsity)


def test_no_row_that_counts_gives_0():
    attention = trained("softmax")
    assert attention(torch.randn(2, 1, 16)).sparsity == 0
    sparsity = attention(torch.randn(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool)).sparsity
    assert sparsity == 0
    sparsity.backward()
    assert attention.q_proj.weight.grad.isfinite().all()


def test_sampled_rows_estimate_the_mean():
    attention, x = trained("softmax", num_rows=5), torch.randn(4, 40, 16)
    q, k, _ = attention.project(x)
    samples = torch.stack([attention.sparsity(attention, q, k) for _ in range(50)])
    assert samples.std() > 0
    exact = AttentionSparsity(num_rows=40)(attention, q, k)
    assert (samples.mean() - exact).abs() < 4 * samples.std() / 50**0.5


@pytest.mark.parametrize("causal", [False, True])
def test_a_linear_mechanism_stays_linear(causal):
    attention, length = trained("linear_elu", num_rows=4, causal=causal), 1024
    with LargestTensor() as largest:
        attention(torch.randn(1, length, 16)).sparsity.backward()
    assert largest.numel < length**2 / 4


def test_only_training_pays():
    attention = trained("softmax", num_rows=2)
    state = torch.get_rng_state()
    assert attention.eval()(torch.randn(1, 8, 16)).sparsity is None
    torch.set_rng_state(state)
    assert attention.train()(torch.randn(1, 8, 16)).sparsity is not None


def test_attach():
    model = nn.Sequential(build_attention("softmax", 16, 2), nn.Linear(16, 16), build_attention("linear_elu", 16, 2))
    attach_sparsity(model, "hoyer", num_rows=3)
    for attention in (model[0], model[2]):
        assert (attention.sparsity.kind, attention.sparsity.num_rows) == ("hoyer", 3)
        assert attention(torch.randn(1, 4, 16)).sparsity is not None


def test_attach_refuses_what_has_no_weights():
    model = nn.ModuleList([build_attention("softmax", 16, 2), build_attention("fnet", 16, 2)])
    with pytest.raises(ValueError, match=r"'fnet' attention does not support a sparsity .* that do: .*softmax"):
        attach_sparsity(model)
    assert model[0].sparsity is None
    with pytest.raises(ValueError, match="contains no Attention"):
        attach_sparsity(nn.Linear(2, 2))


@pytest.mark.parametrize(("options", "message"), [({"kind": "l1"}, "kind='l1'"), ({"num_rows": 0}, "num_rows=0")])
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        AttentionSparsity(**options)
