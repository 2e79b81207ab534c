"""FAVOR+'s features as the engine has them: one formula for all its ways of asking, and its derivative."""

import pytest
import torch
from torch.testing import assert_close

from hf_efficient.linear import kernel_attention
from hf_efficient.linear.favor_plus import FavorPlusFeatures, orthogonal_features

every_kind = pytest.mark.parametrize("relu", [False, True], ids=["positive", "relu"])


def features(relu, epsilon=0.1, num_features=11, dim=6):
    omega = orthogonal_features(num_features, dim, "chi", torch.Generator().manual_seed(0))
    return FavorPlusFeatures(omega, epsilon, relu)


def formula(feature_map, x):
    """φ as the paper has it."""
    x = x * x.shape[-1] ** -0.25
    product = x @ feature_map.projection.to(x.dtype).T
    if feature_map.relu:
        return product.relu() + 1e-3
    return (product - x.square().sum(-1, keepdim=True) / 2).exp() + feature_map.floor


@every_kind
@pytest.mark.parametrize("contiguous", [True, False])
def test_written_called_and_by_the_formula(relu, contiguous):
    feature_map, x = features(relu), torch.randn(2, 3, 5, 6, dtype=torch.float64)
    out = torch.empty(2, 3, 5 if contiguous else 8, 11, dtype=torch.float64)[:, :, :5]
    feature_map.write(x, out, torch.empty_like(out))
    assert out.is_contiguous() is contiguous
    assert_close(out, feature_map(x))
    phi = out if relu else out.exp2() + feature_map.floor
    assert_close(phi, formula(feature_map, x), atol=1e-6, rtol=1e-6)  # Ω is float32


@every_kind
def test_autograd_follows_the_call_as_the_engine_differentiates(relu):
    feature_map = features(relu)
    q, k, v = (torch.randn(1, 2, 5, 6, dtype=torch.float64, requires_grad=True) for _ in range(3))
    fast, _ = kernel_attention(q, k, v, feature_map)
    phi_q, phi_k = ((a if relu else a.exp2() + 0.1) for a in map(feature_map, (q, k)))
    scores = phi_q @ phi_k.mT
    slow = scores / scores.sum(-1, keepdim=True) @ v
    cotangent = torch.randn_like(fast)
    assert_close(*(torch.autograd.grad(x, (q, k, v), cotangent) for x in (fast, slow)), atol=1e-9, rtol=1e-7)


def test_it_knows_the_projection_it_was_made_of():
    feature_map = features(False)
    omega = feature_map.projection
    assert feature_map.is_of(omega)
    assert not feature_map.is_of(omega.clone())
    omega.mul_(2)
    assert not feature_map.is_of(omega), "changed in place"
