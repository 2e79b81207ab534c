"""Separable self-attention: transformers' own layer, and its groups of channels."""

import pytest
import torch
from cases import HIDDEN, make, tokens
from torch.testing import assert_close
from transformers import MobileViTV2Config
from transformers.models.mobilevitv2.modeling_mobilevitv2 import MobileViTV2LinearSelfAttention

from hf_efficient.attention import build_attention

both_ways = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def test_it_is_transformers_layer_with_its_weights():
    theirs = MobileViTV2LinearSelfAttention(MobileViTV2Config(attn_dropout=0.0), HIDDEN).double().eval()
    ours = build_attention("separable", HIDDEN, 1).double().eval()
    for x in theirs.parameters():
        torch.nn.init.normal_(x, std=0.3)
    qkv, out = theirs.qkv_proj.convolution, theirs.out_proj.convolution
    parts = [1, HIDDEN, HIDDEN]
    with torch.no_grad():
        for layer, weight, bias in zip(
            (ours.q_proj, ours.k_proj, ours.v_proj), qkv.weight.split(parts), qkv.bias.split(parts), strict=True
        ):
            layer.weight.copy_(weight[:, :, 0, 0])
            layer.bias.copy_(bias)
        ours.o_proj.weight.copy_(out.weight[:, :, 0, 0])
        ours.o_proj.bias.copy_(out.bias)
    pixels = torch.randn(2, HIDDEN, 4, 9, dtype=torch.float64)  # (B, d, P, N)
    sequences = pixels.permute(0, 2, 3, 1).flatten(0, 1)  # every pixel of a patch apart: (B·P, N, d)
    found = ours(sequences).hidden_states.view(2, 4, 9, HIDDEN).permute(0, 3, 1, 2)
    assert_close(found, theirs(pixels), atol=1e-12, rtol=1e-9)


@both_ways
@pytest.mark.parametrize("latent", [1, 4])
def test_scores_sum_to_one(causal, latent):
    attention, x = make(("separable", {"num_latent_tokens": latent}, causal)), tokens(2, 12)
    with torch.no_grad():  # every key is 1, so the context is the sum of the scores
        attention.k_proj.weight.zero_()
        attention.k_proj.bias.fill_(1)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1, 8:] = False
    output = attention(x, key_mask=mask).hidden_states
    expected = attention.o_proj(attention.v_proj(x).relu())
    assert_close(output[mask], expected[mask], atol=1e-12, rtol=1e-9)


@both_ways
def test_each_group_of_channels_is_pooled_by_its_own_scores(causal):
    attention, x = make(("separable", {"num_latent_tokens": 4}, causal)), tokens(2, 12)
    assert attention.q_proj.weight.shape == (4, HIDDEN)
    groups = []
    for l, keys in enumerate(attention.k_proj(x).split(HIDDEN // 4, -1)):
        scores = attention.q_proj(x)[..., l].unsqueeze(1).expand(2, 12, 12)  # of key j, in every row i
        if causal:
            scores = scores.masked_fill(torch.ones(12, 12, dtype=torch.bool).triu(1), -torch.inf)
        groups.append(scores.softmax(-1) @ keys)
    expected = attention.o_proj(attention.v_proj(x).relu() * torch.cat(groups, -1))
    assert_close(attention(x).hidden_states, expected, atol=1e-12, rtol=1e-9)


def test_groups_with_equal_scores_are_one():
    many, one = (make(("separable", {"num_latent_tokens": n}, False)) for n in (4, 1))
    weights = one.state_dict()
    for name in ("q_proj.weight", "q_proj.bias"):
        weights[name] = weights[name].repeat_interleave(4, 0)
    many.load_state_dict(weights)
    assert_close(many(tokens(2, 12))[0], one(tokens(2, 12))[0], atol=1e-12, rtol=1e-9)


def test_groups_must_divide_the_channels():
    with pytest.raises(ValueError, match="num_latent_tokens=3 must divide hidden_size=16"):
        build_attention("separable", HIDDEN, 2, num_latent_tokens=3)


def test_its_state_does_not_grow_with_the_heads():
    state = build_attention("separable", HIDDEN, 8, causal=True, num_latent_tokens=4).initial_state(3)
    assert {name: x.shape for name, x in state.items()} == {"S": (3, 4, 1, 4), "c": (3, 4, 1), "z": (3, 4, 1)}
