"""Linformer: the tables E and F."""

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close

from hf_efficient.attention import build_attention


def heads(length=10):
    return tuple(torch.randn(2, HEADS, length, 8, dtype=torch.float64) for _ in range(3))


def linformer(**options):
    return make(("linformer", {"max_length": 10, "num_projections": 4, **options}, False))


def test_identity_tables_give_softmax_attention():
    attention = linformer(num_projections=10)
    attention.E.data = attention.F.data = torch.eye(10, dtype=torch.float64)
    q, k, v = heads()
    assert_close(attention.attend(q, k, v), F.scaled_dot_product_attention(q, k, v), atol=1e-12, rtol=1e-9)


def test_keys_and_values_are_projected_along_the_tokens():
    attention = linformer()
    q, k, v = heads()
    expected = F.scaled_dot_product_attention(q, attention.E @ k, attention.F @ v)
    assert_close(attention.attend(q, k, v), expected, atol=1e-12, rtol=1e-9)


def test_one_table_for_both():
    shared, separate = linformer(share_kv=True), linformer()
    assert set(shared.own_parameters()) == {"E"}
    assert set(separate.own_parameters()) == {"E", "F"}
    q, k, v = heads()
    separate.E.data = separate.F.data = shared.E.data
    assert_close(shared.attend(q, k, v), separate.attend(q, k, v), atol=1e-12, rtol=1e-9)


def test_sizes_and_start():
    attention = build_attention("linformer", HIDDEN, HEADS, max_length=300, num_projections=100)
    assert attention.E.shape == attention.F.shape == (100, 300)
    assert abs(attention.E.std() * 100**0.5 - 1) < 0.02
    assert not torch.equal(attention.E, attention.F)
    assert build_attention("linformer", HIDDEN, HEADS, max_length=7).num_projections == 7


def test_dropped_tokens_equal_masked_ones():
    attention, x = linformer(), tokens(2, 10)
    kept = torch.tensor([[0, 2, 3, 7, 9], [1, 2, 5, 6, 8]])
    mask = torch.zeros(2, 10, dtype=torch.bool).scatter_(1, kept, True)
    index = kept.unsqueeze(-1).expand(2, 5, HIDDEN)
    dropped = attention(x.gather(1, index), position_ids=kept).hidden_states
    masked = attention(x, key_mask=mask, position_ids=torch.arange(10)).hidden_states.gather(1, index)
    assert_close(dropped, masked, atol=1e-12, rtol=1e-9)
    assert_close(dropped, attention.reference(x.gather(1, index), position_ids=kept), atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("share_kv", [False, True])
def test_resampling_keeps_the_prefix_and_the_sums(share_kv):
    attention = linformer(share_kv=share_kv)
    for table in attention.tables():
        table.data[0, 1:] = 0.4
    before = [table.detach().clone() for table in attention.tables()]
    attention.resample((3, 3), (3, 3))
    assert_close([table.data for table in attention.tables()], before, atol=1e-12, rtol=1e-12)
    attention.resample((3, 3), (5, 4))
    for table, old in zip(attention.tables(), before, strict=True):
        assert table.shape == (4, 21)
        assert torch.equal(table[:, 0], old[:, 0])
        assert_close(table[0, 1:].sum(), old[0, 1:].sum(), atol=1e-9, rtol=1e-9)
    x = tokens(2, 21)
    assert_close(attention(x).hidden_states, attention.reference(x), atol=1e-10, rtol=1e-9)
