"""One token's product, made of halves, is the product that many tokens get."""

import pytest
import torch

from hf_efficient.layers.projection import NarrowProjection, Projection


def build(kind, inputs, outputs):
    torch.manual_seed(0)
    layer = NarrowProjection(inputs, outputs) if kind is NarrowProjection else Projection(outputs, inputs)
    torch.nn.init.normal_(layer.bias)
    return layer.double()


@pytest.mark.parametrize("kind", [Projection, NarrowProjection])
@pytest.mark.parametrize("sizes", [(6, 10), (10, 6), (7, 4), (4, 7), (5, 5)], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_one_token_as_one_of_many(kind, sizes, shape):
    layer, many = build(kind, *sizes), torch.randn(3, sizes[0], dtype=torch.float64)
    weight = layer.weight if kind is NarrowProjection else layer.weight.T
    torch.testing.assert_close(layer(many), many @ weight.T + layer.bias)
    one = layer(many[0].expand(*shape, -1))
    assert one.shape == (*shape, sizes[1])
    torch.testing.assert_close(one.flatten(), layer(many)[0])


@pytest.mark.parametrize("kind", [Projection, NarrowProjection])
def test_gradients_of_one_token(kind):
    layer = build(kind, 4, 6)
    x = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)
    parameters = layer.weight, layer.bias
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *parameters))


@pytest.mark.parametrize("kind", [Projection, NarrowProjection])
def test_a_token_within_something_larger(kind):
    """Neither contiguous nor at the beginning of its memory."""
    layer, table = build(kind, 4, 6), torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(table[:, 1].unsqueeze(0)), layer(table.T.contiguous())[1:2])
