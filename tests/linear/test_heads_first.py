"""Tokens scaled one by one, in the engine's order of memory: the product and its gradients, of any layout."""

import pytest
import torch
from torch.testing import assert_close

from hf_efficient.linear.heads_first import scale_tokens


@pytest.mark.parametrize("heads_first", [False, True])
def test_the_product_and_its_gradients(heads_first):
    x, s = torch.randn(2, 5, 3, 4, dtype=torch.float64), torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    x = (x.transpose(1, 2).contiguous() if heads_first else x.transpose(1, 2)).requires_grad_()
    product = scale_tokens(x, s)
    assert product.is_contiguous()
    assert_close(product, x * s.unsqueeze(-1))
    assert torch.autograd.gradcheck(scale_tokens, (x, s))
