"""Kerformer: what SE-K is at the start, in every reading of the paper, and on inputs of other lengths."""

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close

from hf_efficient.attention import build_attention

TABLE_6 = {
    "identity q": {"q_act": "identity"},
    "identity k": {"k_act": "identity"},
    "without SE-K": {"se_k": False},
    "complete": {},
}
both_ways = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def heads(length=12, batch=2, width=8):
    return tuple(torch.randn(batch, HEADS, length, width, dtype=torch.float64) for _ in range(3))


@both_ways
@pytest.mark.parametrize("se_mode", ["table", "conv"])
def test_se_k_starts_as_an_exact_no_op_that_learns(causal, se_mode):
    attention = build_attention("kerformer", HIDDEN, HEADS, causal=causal, se_mode=se_mode, max_length=20)
    without = build_attention("kerformer", HIDDEN, HEADS, causal=causal, se_k=False)
    without.load_state_dict({k: x for k, x in attention.state_dict().items() if not k.startswith("se_k.")})
    x = tokens(2, 20, torch.float32)
    output = attention(x).hidden_states
    assert torch.equal(output, without(x).hidden_states)
    output.square().sum().backward()
    learns = {"table": ("se_k.excite.weight", "se_k.excite.bias"), "conv": ("se_k.weight", "se_k.bias")}[se_mode]
    for name in learns:
        # One shared bias scales all keys alike, which cancels.
        assert (attention.get_parameter(name).grad.abs().max() > 1e-9) == (name != "se_k.bias"), name


@both_ways
@pytest.mark.parametrize("row", TABLE_6)
def test_the_rows_of_table_6(row, causal):
    options = TABLE_6[row]
    attention = make(("kerformer", options, causal), max_length=12)
    q, k, v = heads()
    phi_q = q if options.get("q_act") else q.sigmoid()
    phi_k = k if options.get("k_act") else k.softmax(-1)
    if options.get("se_k", True):
        W1, b1 = attention.se_k.squeeze.weight, attention.se_k.squeeze.bias
        W2, b2 = attention.se_k.excite.weight, attention.se_k.excite.bias
        matrix = (W2 @ W1).tril() if causal else W2 @ W1
        s = torch.sigmoid(phi_k.amax(-1) @ matrix.T + W2 @ b1 + b2)
        assert not torch.allclose(s, torch.full_like(s, 0.5), atol=1e-2)
        phi_k = phi_k * s.unsqueeze(-1)
    scores = phi_q @ phi_k.mT
    scores = scores.tril() if causal else scores
    signed = "identity" in options.values()
    keys = torch.arange(1.0, 13).unsqueeze(-1) if causal else 12
    expected = scores @ v / (keys if signed else scores.sum(-1, keepdim=True))
    assert_close(attention.attend(q, k, v), expected, atol=1e-11, rtol=1e-9)
    assert ("row_sums" in attention.exempt_from) is signed


@both_ways
def test_a_signed_kernel_divides_by_the_real_keys(causal):
    attention = make(("kerformer", {"q_act": "identity", "se_k": False}, causal))
    q, k, _ = heads()
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, :5] = mask[1, 9:] = False
    ones = torch.ones_like(k)
    scores = (q @ k.softmax(-1).mT) * mask[:, None, None]
    scores = scores.tril() if causal else scores
    count = mask.cumsum(-1)[:, None, :, None] if causal else mask.sum(-1)[:, None, None, None]
    expected = scores.sum(-1, keepdim=True) / count.clamp_min(1)
    assert_close(attention.attend(q, k, ones, key_mask=mask), expected.expand_as(k), atol=1e-12, rtol=1e-9)


def test_the_mean_of_a_feature_softmax_says_nothing():
    with pytest.raises(ValueError, match=r"se_pool='mean'.*1/D for every input.*allow_degenerate=True"):
        build_attention("kerformer", HIDDEN, HEADS, se_pool="mean")
    attention = build_attention("kerformer", HIDDEN, HEADS, se_pool="mean", allow_degenerate=True)
    q, k, _ = heads()
    assert_close(attention.features(q, 5 * k, None)[2], torch.full((2, HEADS, 12), 1 / 8, dtype=k.dtype))
    z = build_attention("kerformer", HIDDEN, HEADS).features(q, 5 * k, None)[2]
    assert z.min() > 1 / 8
    assert z.max() - z.min() > 0.3, "the maximum tells keys apart"
    for harmless in ({"key_softmax": "sequence"}, {"k_act": "identity"}, {"se_k": False}):
        build_attention("kerformer", HIDDEN, HEADS, se_pool="mean", **harmless)
    assert build_attention("kerformer", HIDDEN, HEADS, key_softmax="sequence").se_pool == "mean"


def test_sliced_tables_equal_zero_padded_input():
    se_k = make(("kerformer", {}, False), max_length=20).se_k
    z = torch.rand(2, HEADS, 13, dtype=torch.float64)
    padded = F.pad(z, (0, 7))
    assert_close(se_k(z, slice(13)), se_k(padded, slice(20))[..., :13], atol=1e-14, rtol=1e-12)


@both_ways
def test_dropped_patches_equal_masked_ones(causal):
    attention, x = make(("kerformer", {}, causal), max_length=20), tokens(2, 20)
    kept = torch.stack([torch.randperm(20)[:13].sort().values for _ in range(2)])
    mask = torch.zeros(2, 20, dtype=torch.bool).scatter_(1, kept, True)
    index = kept.unsqueeze(-1).expand(2, 13, HIDDEN)
    dropped = attention(x.gather(1, index), position_ids=kept).hidden_states
    masked = attention(x, key_mask=mask, position_ids=torch.arange(20)).hidden_states.gather(1, index)
    assert_close(dropped, masked, atol=1e-12, rtol=1e-9)
    elsewhere = attention(x.gather(1, index)).hidden_states
    assert (elsewhere - dropped).abs().max() > 1e-3, "the positions matter"


def test_causal_se_k_is_a_lower_triangular_map():
    se_k = make(("kerformer", {}, True), max_length=80, se_reduction=9).se_k
    z = torch.rand(2, HEADS, 70, dtype=torch.float64)
    W1, W2 = se_k.squeeze.weight[:, :70], se_k.excite.weight[:70]
    constant = W2 @ se_k.squeeze.bias + se_k.excite.bias[:70]
    s, state = se_k.causal(z, slice(70), z.new_zeros(2, se_k.rank, HEADS))
    assert se_k.rank == 8
    assert_close(s, torch.sigmoid(z @ (W2 @ W1).tril().T + constant), atol=1e-12, rtol=1e-9)
    assert_close(state, (z @ W1.T).mT, atol=1e-12, rtol=1e-9)


def test_sequence_softmax_has_the_denominator_of_the_query_alone():
    attention = make(("kerformer", {"key_softmax": "sequence", "se_k": False}, False))
    q, k, v = heads()
    expected = q.sigmoid() @ (k.softmax(2).mT @ v) / q.sigmoid().sum(-1, keepdim=True)
    assert_close(attention.attend(q, k, v), expected, atol=1e-12, rtol=1e-9)


def test_a_sequence_softmax_cannot_be_causal():
    with pytest.raises(ValueError, match=r"'kerformer'.*causal=True with key_softmax='sequence'.*use 'feature'"):
        build_attention("kerformer", HIDDEN, HEADS, causal=True, key_softmax="sequence")


def test_resampling_to_a_new_grid():
    attention = make(("kerformer", {}, False), max_length=17)
    se_k = attention.se_k
    with torch.no_grad():  # a row that is the same for every cell, and one that rises steadily
        se_k.squeeze.weight[0, 1:] = 0.7
        se_k.squeeze.weight.data = torch.cat([se_k.squeeze.weight, torch.arange(17.0)[None]]).double()
    before = {name: x.clone() for name, x in se_k.state_dict().items()}
    attention.resample((4, 4), (4, 4))
    for name, x in se_k.state_dict().items():
        assert_close(x, before[name], atol=1e-12, rtol=1e-12, msg=f"{name}: the same grid changes nothing")
    attention.resample((4, 4), (6, 3))
    W1 = se_k.squeeze.weight
    assert W1.shape == (2, 19)
    assert_close(W1[:, 1:].sum(-1), before["squeeze.weight"][:, 1:].sum(-1), atol=1e-9, rtol=1e-9)
    assert torch.equal(W1[:, 0], before["squeeze.weight"][:, 0])
    assert torch.equal(se_k.excite.weight[0], before["excite.weight"][0])
    assert torch.equal(se_k.excite.bias[0], before["excite.bias"][0])
    spread = se_k.excite.bias[1:]
    assert spread.abs().max() < 1.3 * before["excite.bias"][1:].abs().max(), "what is not summed is not rescaled"


def test_a_resampled_module_takes_the_new_length_and_trains():
    attention = make(("kerformer", {}, False), max_length=17)
    attention.resample((4, 4), (5, 5))
    x = tokens(2, 26)
    output = attention(x).hidden_states
    assert_close(output, attention.reference(x), atol=1e-9, rtol=1e-9)
    output.sum().backward()
    assert all(p.grad.shape == p.shape for p in attention.se_k.parameters())
    with pytest.raises(ValueError, match="max_length=26 positions, got position 26"):
        attention(tokens(2, 27))
    with pytest.raises(ValueError, match=r"old_grid=\(6, 6\).*37 positions, but the table has 26"):
        attention.resample((6, 6), (7, 7))


def test_positions_outside_the_tables_are_named():
    attention, x = make(("kerformer", {}, False), max_length=10), tokens(2, 4)
    for wrong in (10, -1):
        with pytest.raises(ValueError, match=rf"max_length=10 positions, got position {wrong}"):
            attention(x, position_ids=torch.tensor([0, 1, wrong, 2]))
    causal = make(("kerformer", {}, True), max_length=3)
    state = causal.initial_state(2, dtype=torch.float64)
    for i in range(3):
        state = causal(x[:, i : i + 1], state=state).state
    with pytest.raises(ValueError, match="max_length=3 positions, got position 3"):
        causal(x[:, 3:], state=state)


@both_ways
def test_a_convolution_takes_any_length(causal):
    attention = make(("kerformer", {"se_mode": "conv", "conv_kernel": 7}, causal), max_length=4)
    assert not attention.fixed_length
    x = tokens(1, 33)
    assert_close(attention(x).hidden_states, attention.reference(x), atol=1e-10, rtol=1e-9)
    z = torch.rand(1, HEADS, 33, dtype=torch.float64)
    taps = F.pad(z, (6, 0) if causal else (3, 3)).unfold(-1, 7, 1)
    expected = torch.sigmoid((taps * attention.se_k.weight[0, 0]).sum(-1) + attention.se_k.bias)
    assert_close(attention.se_k(z), expected, atol=1e-12, rtol=1e-9)


def test_parameters_of_se_k_in_vit_b_16():
    attention = build_attention("kerformer", 768, 12, max_length=197)
    assert attention.se_k.rank == 12
    assert sum(p.numel() for p in attention.se_k.parameters()) == 4937
    assert set(attention.own_parameters()) == {f"se_k.{name}" for name, _ in attention.se_k.named_parameters()}
