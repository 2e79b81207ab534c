"""Normalised queries and keys: an option of every mechanism that has them."""

import pytest
import torch
from cases import CASES, HEADS, HIDDEN, case_id, make, tokens, where
from torch.testing import assert_close

from hf_efficient.attention import build_attention, convert_attention, get_attention, list_attentions
from hf_efficient.layers import HeadRouter

HEAD_CASES = [case for case in CASES if get_attention(case[0]).per_head]
every_case = pytest.mark.parametrize("case", HEAD_CASES, ids=case_id)


@every_case
def test_the_formula_holds_for_normalised_queries_and_keys(case):
    attention, x = make(case, qk_norm=True), tokens(2, 20).requires_grad_()
    grid = where(attention, 20)
    fast, slow = attention(x, **grid).hidden_states, attention.reference(x, **grid)
    assert_close(fast, slow, atol=1e-9, rtol=1e-9)
    learned = [x, attention.q_norm.weight]
    cotangent = torch.randn_like(fast)
    for a, b in zip(*(torch.autograd.grad(y, learned, cotangent) for y in (fast, slow)), strict=True):
        assert a.any()
        assert_close(a, b, atol=1e-8, rtol=1e-8)


@every_case
def test_queries_and_keys_have_the_length_that_the_gain_says(case):
    attention = make(case, qk_norm=True)
    for norm, gain in ((attention.q_norm, 2.0), (attention.k_norm, 3.0)):
        if norm is not None:
            torch.nn.init.constant_(norm.weight, gain)
    q, k, v = attention.project(tokens(2, 20, scale=7.0))
    size = lambda x: x.unflatten(-1, (-1, attention.head_dim)).square().mean(-1).sqrt()  # noqa: E731
    assert_close(size(q), torch.full_like(size(q), 2.0), atol=1e-4, rtol=1e-4)
    if attention.k_norm is not None:
        assert_close(size(k), torch.full_like(size(k), 3.0), atol=1e-4, rtol=1e-4)
    plain = make(case)
    plain.load_state_dict(attention.state_dict(), strict=False)
    assert torch.equal(v, plain.project(tokens(2, 20, scale=7.0))[2])


def test_softmax_with_norms_is_cosine_attention_by_hand():
    attention, x = make(("softmax", {}, False), qk_norm=True), tokens(2, 9)
    q, k, v = (
        p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    q, k = (
        y / y.square().mean(-1, keepdim=True).add(1e-6).sqrt() * g
        for y, g in ((q, attention.q_norm.weight), (k, attention.k_norm.weight))
    )
    heads = (q @ k.mT / (HIDDEN // HEADS) ** 0.5).softmax(-1) @ v
    assert_close(attention(x).hidden_states, attention.o_proj(heads.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("name", list_attentions(per_head=True))
def test_the_default_has_no_norms(name):
    attention = build_attention(name, HIDDEN, HEADS)
    assert not attention.qk_norm and not any("_norm" in key for key in attention.state_dict())


@pytest.mark.parametrize("name", list_attentions(per_head=False))
def test_mechanisms_without_queries_of_heads_refuse_it(name):
    with pytest.raises(ValueError, match=rf"'{name}' attention does not support qk_norm=True.*softmax"):
        build_attention(name, HIDDEN, HEADS, qk_norm=True)


def test_who_brings_queries_and_keys_normalises_them():
    with pytest.raises(ValueError, match="qk_norm=True needs projections=True"):
        build_attention("softmax", HIDDEN, HEADS, qk_norm=True, projections=False)
    with pytest.raises(ValueError, match="qk_norm='yes' must be one of"):
        build_attention("softmax", HIDDEN, HEADS, qk_norm="yes")


def test_a_state_and_autocast_go_with_it():
    attention, x = make(("linear_elu", {}, True), torch.float32, qk_norm=True), tokens(2, 12, torch.float32)
    whole = attention(x).hidden_states
    first = attention(x[:, :7], state=attention.initial_state(2))
    second = attention(x[:, 7:], state=first.state)
    assert_close(torch.cat([first.hidden_states, second.hidden_states], 1), whole, atol=1e-5, rtol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention.project(x)[0].dtype == torch.bfloat16
        assert_close(attention(x).hidden_states.float(), whole, atol=0.1, rtol=0.1)


def test_converted_and_routed_attention_keeps_its_norms():
    model = torch.nn.ModuleDict({"attention": make(("softmax", {}, False), torch.float32, qk_norm=True)})
    old, x = model["attention"], tokens(2, 9, torch.float32)
    convert_attention(model, "cosformer")
    assert model["attention"].name == "cosformer" and model["attention"].q_norm is old.q_norm
    assert model["attention"].k_norm is old.k_norm and model["attention"].qk_norm
    router = HeadRouter.from_attention(old, capacity=HEADS)
    assert_close(router(x).hidden_states, old(x).hidden_states, atol=1e-5, rtol=1e-5)
