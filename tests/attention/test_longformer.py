"""Longformer: exactly its pattern, `local` without global tokens, and transformers' own Longformer."""

import pytest
import torch
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from hf_efficient.attention import build_attention

both_ways = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])

PATTERNS = {  # w = 1 bidirectional, 2 causal; δ = 2; G = 1
    False: ["xxxxxxx", "xx.x...", "x.x.x..", "xx.x.x.", "x.x.x.x", "x..x.x.", "x...x.x"],
    True: ["x......", "xx.....", "x.x....", "xx.x...", "x.x.x..", "x..x.x.", "x...x.x"],
}


@both_ways
def test_the_pattern_is_exact(causal):
    attention = make(("longformer", {"window": 2 if causal else 1, "dilation": 2, "num_global": 1}, causal))
    q, k, _ = attention.project(tokens(2, 7))
    values = torch.eye(7, attention.head_dim, dtype=torch.float64).expand(2, HEADS, 7, -1)
    found = attention.attend(q, k, values)[..., :7]  # so the output is the matrix
    expected = torch.tensor([[c == "x" for c in row] for row in PATTERNS[causal]])
    assert torch.equal(found != 0, expected.expand_as(found))


@both_ways
def test_without_global_tokens_it_is_local(causal):
    longformer = make(("longformer", {"window": 3, "num_global": 0}, causal))
    local, x = make(("local", {"window": 3}, causal)), tokens(2, 20)
    local.load_state_dict(longformer.state_dict())
    assert_close(longformer(x).hidden_states, local(x).hidden_states, atol=1e-12, rtol=1e-9)


@torch.no_grad()
def test_equals_transformers():
    config = LongformerConfig(hidden_size=HIDDEN, num_attention_heads=HEADS, attention_window=[8], num_hidden_layers=1)
    theirs = LongformerSelfAttention(config, 0).eval()
    ours = make(("longformer", {"window": 4, "num_global": 2, "separate_global": True}, False), torch.float32)
    for new, old in (("query", "q"), ("key", "k"), ("value", "v")):
        getattr(theirs, new).load_state_dict(getattr(ours, f"{old}_proj").state_dict())
        getattr(theirs, f"{new}_global").load_state_dict(getattr(ours, f"{old}_global_proj").state_dict())
    x, real = tokens(2, 24, torch.float32), torch.arange(24) < torch.tensor([[24], [19]])
    is_global = (torch.arange(24) < 2).expand(2, 24)
    mask = torch.where(real, is_global * 10000.0, -10000.0)
    expected = theirs(x, mask, ~real, is_global, True)[0]
    found = ours(x, key_mask=real).hidden_states
    assert_close(found[real], ours.o_proj(expected)[real], atol=1e-5, rtol=1e-5)


def test_global_projections_start_as_copies():
    torch.manual_seed(0)
    separate = build_attention("longformer", HIDDEN, HEADS, window=3, separate_global=True, qk_norm=True)
    shared = build_attention("longformer", HIDDEN, HEADS, window=3, qk_norm=True)
    shared.load_state_dict({k: v for k, v in separate.state_dict().items() if "global" not in k})
    x = tokens(2, 20, torch.float32)
    assert_close(separate(x).hidden_states, shared(x).hidden_states)
    separate.q_global_proj.weight.data.mul_(50)
    assert not torch.allclose(separate(x).hidden_states[:, 0], shared(x).hidden_states[:, 0])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"causal": True}, r"causal=True with separate_global=True"),
        ({"num_global": 0}, r"separate_global=True needs num_global"),
        ({"projections": False}, r"separate_global=True needs projections=True"),
    ],
)
def test_global_projections_that_make_no_sense(options, match):
    with pytest.raises(ValueError, match=match):
        build_attention("longformer", HIDDEN, HEADS, separate_global=True, **options)


def test_its_state_keeps_the_window_and_the_global_tokens():
    attention, x = make(("longformer", {"window": 2, "dilation": 2, "num_global": 3}, True)), tokens(2, 12)
    state = attention(x, state=attention.initial_state(2, dtype=torch.float64)).state
    k, v = attention.project(x)[1:]
    for name, heads in (("k", k), ("v", v)):
        assert_close(state[name], heads[:, :, -4:])
        assert_close(state[f"global_{name}"], heads[:, :, :3])
    assert state["k"].untyped_storage().nbytes() == state["k"].nbytes, "the prompt is not kept alive"
