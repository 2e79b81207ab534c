"""Linear attention with elu + 1: the feature map and its derivative."""

import torch
import torch.nn.functional as F
from cases import HEADS, make
from torch.testing import assert_close

from hf_efficient.linear import EluFeatures

POINTS = torch.tensor([-1e4, -40.0, -1.0, -1e-9, 0.0, 1e-9, 0.3, 1.0, 50.0, 1e4], dtype=torch.float64)


def written(x):
    out = torch.full_like(x, torch.nan)
    EluFeatures().write(x, out, torch.full_like(x, torch.nan))
    return out


def test_features_are_elu_plus_one():
    x = torch.cat([POINTS, torch.randn(90, dtype=torch.float64)]).view(1, 1, 10, 10)
    assert_close(written(x), F.elu(x) + 1, atol=1e-15, rtol=1e-12)
    assert (written(x) >= 0).all()


def test_derivative():
    x = torch.cat([POINTS, torch.randn(90, dtype=torch.float64)]).view(1, 1, 10, 10).requires_grad_()
    cotangent = torch.randn_like(x)
    target = torch.full_like(x, torch.nan)
    EluFeatures().vjp(x.detach(), written(x.detach()), cotangent.clone(), target)
    (expected,) = torch.autograd.grad(F.elu(x) + 1, x, cotangent)
    assert_close(target, expected, atol=1e-15, rtol=1e-12)


def test_the_denominator_has_its_millionth():
    q, k, v = (torch.randn(1, HEADS, 6, 8, dtype=torch.float64) for _ in range(3))
    q, k = q - 9, k - 9  # φ ≈ e^{−9}: products of the size of 10⁻⁶
    scores = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    expected = scores @ v / (scores.sum(-1, keepdim=True) + 1e-6)
    output = make(("linear_elu", {}, False)).attend(q, k, v)
    assert_close(output, expected, atol=1e-13, rtol=1e-9)
    assert (output - scores @ v / scores.sum(-1, keepdim=True)).abs().max() > 0.1
