"""Kernel attention as a formula over an N×N matrix, for the tests of its engine."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from hf_efficient.linear import EluFeatures, FeatureMap, LogFeatureMap


class FlooredMap(LogFeatureMap):
    floor = 0.1


# What the engine is given, and the same φ as a formula.
MAPS = {
    "ready-made": (FeatureMap(), lambda x: x),  # inputs are non-negative; zeros make rows without weight
    "elu": (EluFeatures(), lambda x: F.elu(x) + 1),
    "log": (LogFeatureMap(), torch.exp),
    "log with floor": (FlooredMap(), lambda x: torch.exp(x) + 0.1),
}
every_map = pytest.mark.parametrize("name", MAPS)
both_ways = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def inputs(name, batch=2, heads=2, length=37, width=4, value_width=4, dtype=torch.float64):
    """q, k, v as leaves with the memory of projections, (B, N, H, D)."""
    made = []
    for size in (width, width, value_width):
        x = torch.randn(batch, length, heads, size, dtype=torch.float64)
        made.append((x.relu() if name == "ready-made" and size == width else x).to(dtype).requires_grad_())
    return made


def heads_first(leaves):
    return tuple(x.transpose(1, 2) for x in leaves)


def weight_for(kind, batch=2, heads=2, length=37):
    if kind == "none":
        return None
    kept = torch.rand(batch, heads, length) > 0.3
    kept[0, 0, :5] = False  # causal rows that see nothing
    return kept[:, 0] if kind == "mask" else kept * 1.25


def explicit(name, q, k, v, causal, weight=None, normalise=True, eps=0.0, state=None):
    """The output, and S·e^c after the last token."""
    phi_q, phi_k = MAPS[name][1](q), MAPS[name][1](k)
    if weight is not None:
        phi_k = phi_k * (weight if weight.dim() == 3 else weight[:, None]).to(phi_k)[..., None]
    values = torch.cat([v, torch.ones_like(v[..., :1])], -1) if normalise else v
    scores = phi_q @ phi_k.mT
    readout, total = (scores.tril() if causal else scores) @ values, phi_k.mT @ values
    if state is not None:
        before = state["S"] * state["c"].exp2()[..., None] if "c" in state else state["S"]
        readout, total = readout + phi_q @ before, total + before
    if not normalise:
        return readout, total
    denominator = readout[..., -1:] + eps
    return readout[..., :-1] / denominator.masked_fill(denominator == 0, torch.inf), total


def total_of(state):
    return state["S"] * state["c"].exp2()[..., None] if "c" in state else state["S"]


def assert_equal_with_gradients(fast, slow, leaves, tolerance=1e-9):
    """Tuples of tensors, under one random cotangent each."""
    cotangents = [torch.randn_like(x) for x in slow]
    for a, b in zip(fast, slow, strict=True):
        assert_close(a, b, atol=tolerance, rtol=tolerance)
    gradients = (torch.autograd.grad(x, leaves, cotangents, retain_graph=True) for x in (fast, slow))
    for a, b in zip(*gradients, strict=True):
        assert_close(a, b, atol=10 * tolerance, rtol=10 * tolerance)
