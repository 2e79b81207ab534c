"""Axial attention: softmax attention along one line of the grid at a time."""

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close


def along(attention, x, axis, mask=None):
    """Each line of x (B, R, C, d) by itself, as softmax attention with the same projections."""
    softmax = make(("softmax", {}, False))
    softmax.load_state_dict(attention.state_dict())
    lines = x if axis == "rows" else x.transpose(1, 2)
    output = torch.stack([softmax(line).hidden_states for line in lines.unbind(1)], 1)
    return (output if axis == "rows" else output.transpose(1, 2)).flatten(1, 2)


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_one_axis_is_softmax_attention_on_every_line(axis):
    attention, x = make(("axial", {"axes": axis}, False)), tokens(2, 15)
    found = attention(x, grid=(3, 5)).hidden_states
    assert_close(found, along(attention, x.view(2, 3, 5, HIDDEN), axis), atol=1e-12, rtol=1e-9)


def test_both_axes_are_the_sum_of_either():
    both, x = make(("axial", {}, False)), tokens(2, 15)
    total = 0
    for n, axis in enumerate(("rows", "columns")):
        one, part = make(("axial", {"axes": axis}, False)), slice(n * HIDDEN, (n + 1) * HIDDEN)
        weights = {}
        for name, tensor in both.state_dict().items():
            if name.startswith("o_proj"):
                weights[name] = tensor[:, part] if name.endswith("weight") else tensor / 2
            else:
                weights[name] = tensor[part]
        one.load_state_dict(weights)
        total = total + one(x, grid=(3, 5)).hidden_states
    assert_close(both(x, grid=(3, 5)).hidden_states, total, atol=1e-12, rtol=1e-9)


def test_a_single_row_is_a_sequence():
    attention, x = make(("axial", {"axes": "rows"}, False)), tokens(2, 7)
    q, k, v = attention.project(x)
    assert_close(
        attention.attend(q, k, v, grid=(1, 7)), F.scaled_dot_product_attention(q, k, v), atol=1e-12, rtol=1e-9
    )
    assert_close(make(("axial", {"axes": "columns"}, False)).attend(q, k, v, grid=(1, 7)), v, atol=1e-12, rtol=1e-9)
    assert q.shape == (2, HEADS, 7, 8)


def test_a_cell_sees_its_row_and_its_column():
    attention, x = make(("axial", {}, False)), tokens(1, 15)
    before, seen = attention(x, grid=(3, 5)).hidden_states, []
    for cell in range(15):
        changed = x.clone()
        changed[:, cell] += 1
        seen.append((attention(changed, grid=(3, 5)).hidden_states - before).abs().amax(-1)[0] > 1e-9)
    cell = torch.arange(15)
    expected = (cell[:, None] // 5 == cell // 5) | (cell[:, None] % 5 == cell % 5)
    assert torch.equal(torch.stack(seen), expected)
