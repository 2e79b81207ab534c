"""Rotary positions: the formula, what stays the same, and what they depend on."""

import math

import pytest
import torch
from torch.testing import assert_close

from hf_efficient.layers.rotary import RotaryTable, rotate

POSITIONS = torch.tensor([-7.5, -2.0, 0.0, 1.0, 2.0, 300.25], dtype=torch.float64)


def table(dtype=torch.float64, positions=POSITIONS, theta=100.0):
    return RotaryTable(positions, 6, theta).on(torch.device("cpu"), dtype)


def vectors(heads=2, seed=0):
    return torch.randn(3, len(POSITIONS), heads, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_pairs_are_turned_by_the_formula():
    x = vectors()
    turned = rotate(x, table())
    for n, position in enumerate(POSITIONS.tolist()):
        for i in range(3):
            angle = position * 100.0 ** (-2 * i / 6)
            a, b = x[:, n, :, 2 * i], x[:, n, :, 2 * i + 1]
            assert_close(turned[:, n, :, 2 * i], a * math.cos(angle) - b * math.sin(angle))
            assert_close(turned[:, n, :, 2 * i + 1], b * math.cos(angle) + a * math.sin(angle))


def test_norms_stay_and_products_depend_on_the_distance():
    q, k = vectors(seed=1), vectors(seed=2)
    assert_close(rotate(q, table()).norm(dim=-1), q.norm(dim=-1))
    shifted = table(positions=POSITIONS + 11.75)
    products = [torch.einsum("bnhd,bmhd->bhnm", rotate(q, t), rotate(k, t)) for t in (table(), shifted)]
    assert_close(*products)


def test_rows_may_have_positions_of_their_own():
    x, rotation = vectors(), table()
    order = torch.stack([torch.randperm(6) for _ in range(3)])
    turned = rotate(x, rotation[order])
    for row in range(3):
        assert_close(turned[row], rotate(x[row : row + 1], rotation[order[row]])[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_is_turned_in_float32(dtype):
    x = vectors().to(dtype)
    turned = rotate(x, table(dtype))
    assert turned.dtype == dtype
    assert_close(
        turned.double(), rotate(x.double(), table()), atol=4 * torch.finfo(dtype).eps, rtol=torch.finfo(dtype).eps
    )


def test_gradients():
    assert torch.autograd.gradcheck(lambda x: rotate(x, table()), vectors().requires_grad_())
