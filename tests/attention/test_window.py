"""Window attention: which cells meet, against Swin's own way of saying it, and both versions of its scores."""

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close
from transformers import Swinv2Config
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention

from hf_efficient.attention import build_attention


def heads(cells):
    return tuple(torch.randn(2, HEADS, cells, 8, dtype=torch.float64) for _ in range(3))


def matrix(attention, q, k, grid):
    """The weights by the fast path: the output of values that are the unit vectors."""
    cells = q.shape[2]
    return attention.attend(q, k, torch.eye(cells, dtype=q.dtype).expand(2, HEADS, cells, cells), grid=grid)


def swin_regions(grid, M, shift):
    """Who sees whom, as Swin has it: roll by −s, cut into windows, and compare the nine regions of the rolled map."""
    region = torch.zeros(grid, dtype=torch.long)
    count = 0
    for h in (slice(0, -M), slice(-M, -shift), slice(-shift, None)):
        for w in (slice(0, -M), slice(-M, -shift), slice(-shift, None)):
            region[h, w] = count
            count += 1
    y, x = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    window = y // M * grid[1] + x // M
    region, window = (z.roll((shift, shift), (0, 1)).flatten() for z in (region, window))  # back to where they were
    return (region[:, None] == region) & (window[:, None] == window)


@pytest.mark.parametrize(("grid", "M"), [((8, 8), 4), ((9, 6), 3), ((4, 12), 2), ((10, 15), 5)])
def test_shifted_windows_are_swins_nine_regions(grid, M):
    attention = make(("window", {"window": M, "shift": True}, False))
    q, k, _ = heads(grid[0] * grid[1])
    expected = swin_regions(grid, M, M // 2)
    found = matrix(attention, q, k, grid)
    assert torch.equal(found > 0, expected.expand_as(found))


def offsets(M):
    y, x = torch.meshgrid(torch.arange(M), torch.arange(M), indexing="ij")
    y, x = y.flatten(), x.flatten()
    return y[:, None] - y, x[:, None] - x


def test_unshifted_windows_are_softmax_attention_with_a_bias():
    attention = make(("window", {"window": 3, "shift": False}, False))
    q, k, v = heads(36)
    found = attention.attend(q, k, v, grid=(6, 6)).unflatten(2, (6, 6))
    dy, dx = offsets(3)
    bias = attention.position_bias[(dy + 2) * 5 + dx + 2].permute(2, 0, 1)  # (H, 9, 9)
    for a, b in ((0, 0), (0, 3), (3, 0), (3, 3)):
        here = [x.unflatten(2, (6, 6))[:, :, a : a + 3, b : b + 3].flatten(2, 3) for x in (q, k, v)]
        expected = F.scaled_dot_product_attention(*here, attn_mask=bias)
        assert_close(found[:, :, a : a + 3, b : b + 3].flatten(2, 3), expected, atol=1e-12, rtol=1e-9)


def test_a_map_within_one_window_is_softmax_attention():
    q, k, v = heads(15)
    for shift in (False, True):  # nothing to shift
        attention = make(("window", {"window": 5, "shift": shift}, False))
        with torch.no_grad():
            attention.position_bias.zero_()
        found = attention.attend(q, k, v, grid=(3, 5))
        assert_close(found, F.scaled_dot_product_attention(q, k, v), atol=1e-12, rtol=1e-9)


def test_odd_layers_are_shifted():
    shifts = [build_attention("window", HIDDEN, HEADS, window=5, layer_idx=i).shift for i in range(4)]
    assert shifts == [0, 2, 0, 2]
    assert build_attention("window", HIDDEN, HEADS, window=5, shift=True).shift == 2
    assert build_attention("window", HIDDEN, HEADS, window=5, layer_idx=1, shift=False).shift == 0
    assert build_attention("window", HIDDEN, HEADS, window=5).position_bias.shape == (81, HEADS)


@pytest.mark.parametrize("shift", [False, True], ids=["plain", "shifted"])
def test_a_map_that_windows_do_not_divide(shift):
    """Windows at the border are smaller; nothing is invented beyond it."""
    attention = make(("window", {"window": 4, "shift": shift}, False))
    q, k, _ = heads(35)
    found = matrix(attention, q, k, (5, 7))
    y, x = torch.arange(35) // 7, torch.arange(35) % 7
    s = 2 if shift else 0
    rows, columns = (torch.div(a - s, 4, rounding_mode="floor") for a in (y, x))
    expected = (rows[:, None] == rows) & (columns[:, None] == columns)
    assert torch.equal(found > 0, expected.expand_as(found))
    assert_close(found.sum(-1), torch.ones_like(found[..., 0]), atol=1e-12, rtol=0)


def test_version_2_is_transformers_swin_v2():
    config = Swinv2Config(attention_probs_dropout_prob=0.0)
    theirs = Swinv2SelfAttention(config, HIDDEN, HEADS, 4).double().eval()
    theirs.relative_coords_table = theirs.create_coords_table_and_index()[0].double()
    ours = make(("window", {"window": 4, "version": 2, "shift": False}, False))
    with torch.no_grad():
        ours.k_proj.bias.zero_()
        ours.log_scale.copy_(torch.tensor([1.0, 7.0]))  # the second beyond its limit
        for mine, its in ((ours.q_proj, theirs.query), (ours.k_proj, theirs.key), (ours.v_proj, theirs.value)):
            its.weight.copy_(mine.weight)
            if its.bias is not None:
                its.bias.copy_(mine.bias)
        theirs.logit_scale.copy_(ours.log_scale.view(-1, 1, 1))
        theirs.continuous_position_bias_mlp.load_state_dict(ours.position_mlp.state_dict())
    x = tokens(2, 32)
    windows = x.view(2, 4, 2, 4, HIDDEN).transpose(1, 2).reshape(4, 16, HIDDEN)
    expected = theirs(windows)[0].view(2, 2, 4, 4, HIDDEN).transpose(1, 2).reshape(2, 32, HIDDEN)
    # transformers keeps the table of offsets in float32
    assert_close(ours(x, grid=(4, 8)).hidden_states, ours.o_proj(expected), atol=1e-5, rtol=1e-5)


def test_version_2_ignores_the_size_of_queries_and_keys():
    attention = make(("window", {"window": 3, "version": 2, "shift": True}, False))
    q, k, v = heads(36)
    expected = attention.attend(q, k, v, grid=(6, 6))
    assert_close(attention.attend(7 * q, k / 9, v, grid=(6, 6)), expected, atol=1e-11, rtol=1e-9)
