"""Features in the engine's order of memory: the products and their gradients, of inputs in any order."""

import pytest
import torch
from torch.testing import assert_close

from hf_efficient.linear.heads_first import scale_tokens, turn_tokens


def tokens(heads_first):
    x = torch.randn(2, 5, 3, 4, dtype=torch.float64).transpose(1, 2)
    return (x.contiguous() if heads_first else x).requires_grad_()


@pytest.mark.parametrize("heads_first", [False, True])
def test_tokens_are_scaled(heads_first):
    x, s = tokens(heads_first), torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    scaled = scale_tokens(x, s)
    assert scaled.is_contiguous()
    assert_close(scaled, x * s.unsqueeze(-1))
    assert torch.autograd.gradcheck(scale_tokens, (x, s))


@pytest.mark.parametrize("heads_first", [False, True])
def test_tokens_are_turned(heads_first):
    x, angles = tokens(heads_first), torch.rand(2, 1, 5, 1, dtype=torch.float64)
    turned = turn_tokens(x, angles)
    assert turned.is_contiguous()
    assert_close(turned, torch.cat([x * angles.cos(), x * angles.sin()], -1))
    assert torch.autograd.gradcheck(turn_tokens, (x, angles))
