"""oneDNN's product is the formula, with its gradients, and stays out of the way of whoever looks at operations."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from hf_efficient.models.compressive_performer.fast import affine as module
from hf_efficient.models.compressive_performer.fast.affine import affine
from hf_efficient.models.compressive_performer.fast.switch import switched_off

needs_onednn = pytest.mark.skipif(not module.AVAILABLE, reason="PyTorch has no oneDNN here, or no AVX")


@pytest.fixture
def products(monkeypatch):
    """What oneDNN is asked for; with products of every size worth it."""
    monkeypatch.setattr(module, "WORTHWHILE", 0)
    made, product = [], module._product
    monkeypatch.setattr(module, "_product", lambda *inputs: made.append(inputs) or product(*inputs))
    return made


def leaves(rows=(2, 5), inputs=6, outputs=10, stored="(out, in)", dtype=torch.float32):
    torch.manual_seed(0)
    x, bias = torch.randn(*rows, inputs, dtype=dtype), torch.randn(outputs, dtype=dtype)
    weight = torch.randn(*((outputs, inputs) if stored == "(out, in)" else (inputs, outputs)), dtype=dtype)
    return [tensor.requires_grad_() for tensor in (x, weight, bias)]


@needs_onednn
@pytest.mark.parametrize("stored", ["(out, in)", "(in, out)"])
@pytest.mark.parametrize("sizes", [(6, 10), (10, 6), (4, 4)], ids=str)
@pytest.mark.parametrize("rows", [(7,), (2, 5), (1, 1)], ids=str)
def test_output_and_gradients(products, stored, sizes, rows):
    x, weight, bias = given = leaves(rows, *sizes, stored)
    matrix = weight if stored == "(out, in)" else weight.mT
    expected = x.double() @ matrix.double().mT + bias.double()
    cotangent = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, given, cotangent)
    output = affine(x, matrix, bias)
    found = torch.autograd.grad(output, given, cotangent.float())
    assert len(products) == 3
    assert_close(output, expected.float())
    for mine, formula in zip(found, wanted, strict=True):
        assert_close(mine, formula)
    with torch.no_grad():
        assert_close(affine(x, matrix, bias), expected.float())


@needs_onednn
def test_nothing_is_computed_for_what_is_frozen(products):
    x, weight, bias = leaves()
    affine(x.detach(), weight, bias).sum().backward()
    assert len(products) == 2 and weight.grad is not None
    affine(x, weight.detach(), bias.detach()).sum().backward()
    assert len(products) == 4 and x.grad is not None


@needs_onednn
def test_inputs_of_any_layout(products):
    x, weight, bias = leaves()
    expected = F.linear(x, weight, bias)
    odd = x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    output = affine(odd, weight, bias)
    assert_close(output, expected)
    cotangent = torch.randn(output.shape[::-1]).permute(2, 1, 0)
    assert_close(*(torch.autograd.grad(out, leaf, cotangent)[0] for out, leaf in ((output, odd), (expected, x))))
    assert products


@needs_onednn
@pytest.mark.parametrize(
    "cut", [lambda w: w[:, 2:].mT, lambda w: w[:, 2:], lambda w: w[2:, ::2]], ids=["columns", "rows", "steps"]
)
def test_part_of_a_weight(products, cut):
    whole = torch.randn(12, 12).requires_grad_()
    x, bias = torch.randn(2, 5, cut(whole).shape[1]).requires_grad_(), torch.randn(cut(whole).shape[0])
    found, wanted = (
        torch.autograd.grad(function(x, cut(whole), bias).square().sum(), (x, whole))
        for function in (affine, F.linear)
    )
    assert products
    assert_close(found, wanted)


def kept_by(output):
    return [x for x in output.grad_fn.saved_tensors if x is not None]


@needs_onednn
def test_only_what_has_to_be_is_kept(products):
    x, weight, bias = leaves()
    assert [kept.shape for kept in kept_by(affine(x, weight.detach(), bias))] == [weight.shape]
    assert [kept.shape for kept in kept_by(affine(x.detach(), weight, bias))] == [x.shape]


def test_other_types_and_small_products_go_elsewhere(products, monkeypatch):
    x, weight, bias = leaves()
    double = leaves(dtype=torch.float64)
    assert_close(affine(*double), F.linear(*double))
    with torch.autocast("cpu", torch.bfloat16):
        assert affine(x, weight, bias).dtype == torch.bfloat16
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "enabled", False)
        affine(x, weight, bias)
    with switched_off():
        affine(x, weight, bias)
    monkeypatch.setattr(module, "WORTHWHILE", 2**23)
    affine(x, weight, bias)
    assert not products


def test_who_counts_operations_sees_them(products):
    with FlopCounterMode(display=False) as counter:
        affine(*leaves()).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 10 * 6 * 10
    assert not products


def test_exported_as_a_linear_layer(products):
    class Layer(torch.nn.Module):
        def forward(self, x, weight, bias):
            return affine(x, weight, bias)

    given = [tensor.detach() for tensor in leaves()]
    program = torch.export.export(Layer(), tuple(given))
    assert_close(program.module()(*given), F.linear(*given))
    assert not products
