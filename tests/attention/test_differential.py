"""Differential attention: softmax without rounding, errors that the bits bound, and padding without effect."""

import pytest
import torch
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close

from hf_efficient.attention import build_attention


def test_without_rounding_it_is_softmax_attention():
    attention, softmax = make(("differential", {"bits": None}, False)), make(("softmax", {}, False))
    softmax.load_state_dict(attention.state_dict())
    x = tokens(2, 12)
    assert_close(attention(x, grid=(3, 4))[0], softmax(x)[0], atol=1e-12, rtol=1e-9)
    assert_close(attention.reference(x, grid=(3, 4)), softmax(x)[0], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_errors_are_those_of_the_bits(bits):
    attention, x = build_attention("differential", HIDDEN, HEADS, bits=bits), tokens(2, 12)
    received, patches = attention.received(x, (3, 4)).unflatten(1, (3, 4)), x.unflatten(1, (3, 4))
    assert torch.equal(received[:, :, 0], patches[:, :, 0]), "the first of a row is whole"
    sent = received.diff(dim=2)  # multiples of one scale for each image
    scale = patches.diff(dim=2).abs().amax((1, 2, 3), keepdim=True) / (2 ** (bits - 1) - 1)
    assert_close(sent / scale, (sent / scale).round(), atol=1e-6, rtol=0)
    error = (received - patches).abs().amax((1, 3))  # (B, C)
    assert (error <= scale[:, 0, 0] / 2 * torch.arange(4) + 1e-12).all() and (error[:, 1:] > 0).all()


@pytest.mark.parametrize("side", ["left", "top", "right", "gap"])
def test_padding_changes_no_real_cell(side):
    attention, x = make(("differential", {"bits": 3}, False)), tokens(2, 12).unflatten(1, (3, 4))
    rows, columns = slice(side == "top", 3), slice(side == "left", 4 - (side == "right"))
    mask = torch.zeros(2, 3, 4, dtype=torch.bool)
    mask[:, rows, columns] = True
    if side == "gap":
        mask[:, :, 1] = False
    hostile = x.masked_fill(~mask.unsqueeze(-1), torch.nan).flatten(1, 2)
    padded = attention(hostile, key_mask=mask.flatten(1), grid=(3, 4)).hidden_states.unflatten(1, (3, 4))
    assert torch.isfinite(padded[mask]).all()
    if side == "gap":  # what is right of it starts anew
        received = attention.received(hostile, (3, 4), mask.flatten(1)).unflatten(1, (3, 4))
        assert torch.equal(received[:, :, 2], x[:, :, 2])
        return
    part = x[:, rows, columns]
    alone = attention(part.flatten(1, 2), grid=tuple(part.shape[1:3])).hidden_states
    assert_close(padded[:, rows, columns].flatten(1, 2), alone, atol=1e-9, rtol=1e-9)
