"""A projection at hand is the projection, for one token and for many."""

import pytest
import torch

from hf_efficient.models.compressive_performer.fast.projection import NarrowProjection, Projection


@pytest.mark.parametrize("kind", [Projection, NarrowProjection])
@pytest.mark.parametrize("sizes", [(6, 10), (10, 6), (7, 4), (4, 7), (5, 5)], ids=str)
@pytest.mark.parametrize("rows", [1, 3])
def test_at_hand(kind, sizes, rows):
    torch.manual_seed(0)
    layer = kind(*(sizes if kind is NarrowProjection else sizes[::-1])).double()
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(rows, sizes[0], dtype=torch.float64)
    weight = layer.weight.T if kind is NarrowProjection else layer.weight
    torch.testing.assert_close(layer(x), x @ weight + layer.bias)
    at_hand = layer.at_hand()
    torch.testing.assert_close(at_hand(x), layer(x).detach())
    with torch.no_grad():
        layer.weight.mul_(2)
        layer.bias.add_(1)
    torch.testing.assert_close(at_hand(x), layer(x).detach())
