"""BigBird: its random blocks, short samples in long batches, and transformers' own BigBird."""

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close
from transformers import BigBirdConfig, BigBirdModel
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

from hf_efficient.attention import build_attention


def bigbird(dtype=torch.float64, **options):
    return make(("bigbird", {"block_size": 4, "num_random_blocks": 2, **options}, False), dtype)


@torch.no_grad()
def test_equals_transformers(monkeypatch):
    config = BigBirdConfig(
        hidden_size=HIDDEN, num_attention_heads=HEADS, block_size=4, num_random_blocks=2, attention_type="block_sparse"
    )
    theirs, ours = BigBirdBlockSparseAttention(config).double().eval(), bigbird()
    for new, old in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
        getattr(theirs, new).load_state_dict(getattr(ours, old).state_dict())
    drawn = ours.random_blocks(torch.tensor([[11]]), 12)[0][0]  # (H, n, r)
    rows = [head[1:-1].numpy() for head in drawn]  # theirs draws none outside training, and counts block 0 instead
    monkeypatch.setattr(theirs, "_bigbird_block_rand_mask_with_head", lambda **_: rows)
    x, real = tokens(2, 48), torch.arange(48) < torch.tensor([[48], [45]])
    blocked, band, from_mask, to_mask = BigBirdModel.create_masks_for_block_sparse_attn(real.double(), 4)
    expected = theirs(x, band, from_mask, to_mask, blocked, blocked)[0]
    found = ours(x, key_mask=real).hidden_states
    assert_close(found[real], ours.o_proj(expected)[real], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("count", [8, 9, 20, 300])
def test_random_blocks_are_others(count):
    attention = build_attention("bigbird", HIDDEN, HEADS, num_random_blocks=3)
    drawn, exists = attention.random_blocks(torch.tensor([[count - 1]]), count)
    assert exists[:, :, 1:-1].all()
    for head in range(HEADS):
        for m in range(1, count - 1):
            chosen = drawn[0, head, m][exists[0, head, m]].tolist()
            assert len(set(chosen)) == len(chosen) and set(chosen).isdisjoint({0, m - 1, m, m + 1, count - 1})
            assert all(0 < block < count for block in chosen)
    if count > 9:
        assert not torch.equal(drawn[0, 0], drawn[0, 1]), "heads differ"
        assert drawn[0, :, 1:-1].unique().numel() > 0.9 * (count - 2), "all blocks are reached"


def test_blocks_follow_from_seed_and_layer():
    draws = [build_attention("bigbird", HIDDEN, HEADS, **options).draws for options in ({}, {}, {"seed": 1})]
    draws.append(build_attention("bigbird", HIDDEN, HEADS, layer_idx=1).draws)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2]) and not torch.equal(draws[0], draws[3])


def test_few_blocks_see_everything():
    attention = bigbird()
    q, k, v = attention.project(tokens(2, 24))  # 4 + r blocks
    assert_close(attention.attend(q, k, v), F.scaled_dot_product_attention(q, k, v), atol=1e-12, rtol=1e-9)
    assert (attention.weights(q, k) > 0).all()
    q, k, _ = attention.project(tokens(2, 25))
    assert (attention.weights(q, k) == 0).any()


@pytest.mark.parametrize("length", [1, 7, 30])
def test_a_short_sample_in_a_long_batch(length):
    attention, x = bigbird(), tokens(2, 60)
    mask = torch.ones(2, 60, dtype=torch.bool)
    mask[1] = torch.zeros(60).scatter(0, torch.randperm(60)[:length], 1).bool()  # gaps, too
    together = attention(x, key_mask=mask).hidden_states
    alone = attention(x[1:, mask[1]]).hidden_states
    assert_close(together[1:, mask[1]], alone, atol=1e-9, rtol=1e-9)
    assert_close(together, attention.reference(x, key_mask=mask), atol=1e-9, rtol=1e-9)
