"""LSH attention: the hash, who meets whom, and that the future stays out."""

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close

from hf_efficient.attention import build_attention

both_ways = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def heads(length):
    return tuple(torch.randn(2, HEADS, length, 8, dtype=torch.float64) for _ in range(2))  # q = k, and v


def lsh(causal=False, **options):
    return make(("lsh", {"num_buckets": 4, "chunk_size": 3, "num_rounds": 2, **options}, causal))


def matrix(attention, q):
    """The weights by the fast path: the output of values that are the unit vectors."""
    values = torch.eye(q.shape[2], dtype=q.dtype).expand(*q.shape[:2], -1, -1)
    return attention.attend(q, q, values)


def test_the_hash():
    attention = lsh(num_buckets=6, num_rounds=3)
    q, _ = heads(50)
    buckets = attention.buckets(q)
    assert buckets.shape == (2, HEADS, 3, 50)
    assert buckets.unique().tolist() == list(range(6))
    assert torch.equal(attention.buckets(5 * q), buckets), "of the direction only"
    assert torch.equal(attention.buckets(-q), (buckets + 3) % 6), "opposite tokens are in opposite buckets"
    nearby = attention.buckets(q + 1e-6 * torch.randn_like(q))
    assert (nearby == buckets).double().mean() > 0.99
    mask = torch.arange(50).expand(2, 50) < 40
    assert (attention.buckets(q, mask)[..., 40:] == 6).all()
    with pytest.raises(ValueError, match="num_buckets=5 must be even"):
        build_attention("lsh", HIDDEN, HEADS, num_buckets=5)


def test_rotations_are_a_function_of_seed_and_layer():
    drawn = [build_attention("lsh", HIDDEN, HEADS, seed=s, layer_idx=i).rotations for s in (0, 1) for i in (0, 1)]
    for i, a in enumerate(drawn):
        assert not any(torch.equal(a, b) for b in drawn[:i])
    assert torch.equal(drawn[3], build_attention("lsh", HIDDEN, HEADS, seed=1, layer_idx=1).rotations)
    assert not build_attention("lsh", HIDDEN, HEADS).rotations.requires_grad


@both_ways
def test_one_chunk_is_softmax_attention_on_shared_queries(causal):
    """All in one bucket or chunk: normalised keys, and oneself only where there is no other."""
    attention = lsh(causal, chunk_size=20, num_buckets=2)
    attention.rotations.zero_()  # everything hashes alike
    q, v = heads(20)
    logits = q @ F.normalize(q, dim=-1).mT / 8**0.5
    logits = logits.masked_fill(torch.eye(20, dtype=torch.bool), -1e5)
    if causal:
        logits = logits.masked_fill(torch.ones(20, 20, dtype=torch.bool).triu(1), -torch.inf)
    assert_close(attention.attend(q, q, v), logits.softmax(-1) @ v, atol=1e-11, rtol=1e-9)
    if causal:
        assert_close(attention.attend(q, q, v)[:, :, 0], v[:, :, 0], atol=1e-12, rtol=1e-9)


def test_causal_tokens_meet_in_their_bucket_only():
    attention = lsh(True)
    q, _ = heads(60)
    buckets, met = attention.buckets(q), matrix(attention, q) > 0
    together = (buckets.unsqueeze(-1) == buckets.unsqueeze(-2)).any(2)  # in some round
    assert not (met & ~together).any()
    assert not met.triu(1).any()
    assert met.sum(-1).float().mean() > 3, "the test is about something"


def test_causal_reach_is_its_chunk_and_the_one_before():
    attention = lsh(True, num_rounds=1, num_buckets=2)
    attention.rotations.zero_()  # a single bucket
    q, _ = heads(20)
    i = torch.arange(20)
    chunk = i // 3
    expected = (chunk[:, None] - chunk <= 1) & (i <= i[:, None])
    expected &= (i[:, None] != i) | (i == 0)[:, None]  # a token sees itself only if there is no other
    found = matrix(attention, q)
    assert torch.equal(found > 1e-30, expected.expand_as(found))


def test_the_future_moves_no_weight():
    attention = lsh(True)
    q, _ = heads(40)
    before = matrix(attention, q)
    for t in range(1, 40, 3):
        changed = q.clone()
        changed[:, :, t:] = torch.randn_like(changed[:, :, t:])
        after = matrix(attention, changed)
        assert_close(after[:, :, :t], before[:, :, :t], atol=1e-13, rtol=0)


def test_bidirectional_chunks_follow_the_sorted_buckets():
    attention = lsh(num_rounds=1)
    q, _ = heads(21)
    order = attention.buckets(q)[:, :, 0].argsort(dim=-1, stable=True)
    chunk = torch.empty_like(order).scatter_(-1, order, (torch.arange(21) // 3).expand_as(order))
    gap = (chunk.unsqueeze(-1) - chunk.unsqueeze(-2)) % 7  # seven chunks, the last before the first
    expected = (gap <= 1) & ~torch.eye(21, dtype=torch.bool)
    assert torch.equal(matrix(attention, q) > 1e-30, expected)


def test_rounds_are_weighted_by_what_they_found():
    attention = lsh(True, num_rounds=2)
    q, v = heads(30)
    outputs, totals = [], []
    for r in range(2):
        bucket = attention.buckets(q)[:, :, r]
        member = bucket.unsqueeze(-1) == bucket.unsqueeze(-2)
        place = (member.tril().sum(-1) - 1) // 3  # chunk within the bucket
        allowed = member & ((place.unsqueeze(-1) - place.unsqueeze(-2)) <= 1)
        logits = (q @ F.normalize(q, dim=-1).mT / 8**0.5).masked_fill(torch.eye(30, dtype=torch.bool), -1e5)
        logits = logits.masked_fill(~allowed.tril(), -torch.inf)
        outputs.append(logits.softmax(-1) @ v)
        totals.append(logits.logsumexp(-1, keepdim=True))
    share = torch.stack(totals).softmax(0)
    assert_close(attention.attend(q, q, v), (share * torch.stack(outputs)).sum(0), atol=1e-11, rtol=1e-9)


def test_queries_and_keys_share_a_projection():
    attention = make(("lsh", {}, False))
    q, k, _ = attention.project(tokens(2, 5))
    assert q is k
    assert not hasattr(attention, "k_proj")
