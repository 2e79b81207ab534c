"""What every mechanism promises, for every registered mechanism: registering is being tested."""

import json

import pytest
import torch
from cases import CASES, CAUSAL, CROSS, HEADS, HIDDEN, OPTIONS, case_id, make, tokens, where
from torch.testing import assert_close

from hf_efficient.attention import Attention, attention_options, build_attention, get_attention, list_attentions
from hf_efficient.attention.base import FLAGS, LAWS

every_case = pytest.mark.parametrize("case", CASES, ids=case_id)
every_causal_case = pytest.mark.parametrize("case", CAUSAL, ids=case_id)
every_cross_case = pytest.mark.parametrize("case", CROSS, ids=case_id)
every_name = pytest.mark.parametrize("name", list_attentions())


def gradients(output, cotangent, attention, x):
    wanted = [x, *(p for p in attention.parameters() if p.requires_grad)]
    return torch.autograd.grad(output, wanted, cotangent, allow_unused=True)


def padding(batch, length, side):
    """Rows of different length, padded on one side."""
    real = torch.tensor([length - 2 * i for i in range(batch)])
    places = torch.arange(length).expand(batch, length)
    return places < real[:, None] if side == "right" else places >= length - real[:, None]


def run_in_pieces(attention, x, cuts, dtype=torch.float64, key_mask=None):
    state, outputs = attention.initial_state(x.shape[0], dtype=dtype), []
    for a, b in zip([0, *cuts], [*cuts, x.shape[1]], strict=True):
        result = attention(x[:, a:b], state=state, key_mask=None if key_mask is None else key_mask[:, a:b])
        outputs.append(result.hidden_states)
        state = result.state
    return torch.cat(outputs, 1), state


def cases_and_lengths():
    """Long sequences, whose formula is slow, with the defaults only: options change what one chunk does.

    500 tokens are seven blocks of the causal linear form, or windows of `local`, and a part of one. Lengths beyond a
    chunk of the linear engine are for `tests/linear/test_chunked.py`.
    """
    for case in CASES:
        for length in (1, 2, 63, 197, 500):
            if length < 500 or not case[1]:
                marks = [pytest.mark.slow] if length == 500 else []
                yield pytest.param(case, length, marks=marks, id=f"{length}-{case_id(case)}")


@pytest.mark.parametrize(("case", "length"), cases_and_lengths())
def test_fast_equals_naive(case, length):
    attention, x = make(case), tokens(2, length).requires_grad_()
    grid = where(attention, length)
    fast, slow = attention(x, **grid).hidden_states, attention.reference(x, **grid)
    assert_close(fast, slow, atol=1e-9, rtol=1e-9)
    cotangent = torch.randn(fast.shape, dtype=fast.dtype, generator=torch.Generator().manual_seed(3))
    for a, b in zip(gradients(fast, cotangent, attention, x), gradients(slow, cotangent, attention, x), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert_close(a, b, atol=1e-8, rtol=1e-8)


@every_case
def test_fast_equals_naive_in_float32(case):
    attention, x = make(case, torch.float32), tokens(2, 63, torch.float32)
    grid = where(attention, 63)
    assert_close(attention(x, **grid).hidden_states, attention.reference(x, **grid), atol=2e-5, rtol=2e-5)


@every_case
@pytest.mark.parametrize("side", ["left", "right"])
def test_fast_equals_naive_under_padding(case, side):
    attention, x = make(case), tokens(3, 24).requires_grad_()
    if not attention.supports_key_mask:
        pytest.skip("takes no key_mask")
    mask, grid = padding(3, 24, side), where(attention, 24)
    fast = attention(x, key_mask=mask, **grid).hidden_states
    slow = attention.reference(x, key_mask=mask, **grid)
    assert_close(fast, slow, atol=1e-9, rtol=1e-9)
    real = mask.unsqueeze(-1).to(x).expand_as(x)
    for a, b in zip(gradients(fast, real, attention, x), gradients(slow, real, attention, x), strict=True):
        if a is not None:
            assert torch.isfinite(a).all()
            assert_close(a, b, atol=1e-8, rtol=1e-8)


@every_case
def test_rows_are_distributions(case):
    attention, x = make(case), tokens(2, 20)
    if not attention.has_weights() or "row_sums" in attention.exempt_from:
        pytest.skip("its rows are no distributions")
    weights = attention(x, output_attentions=True, **where(attention, 20)).weights
    assert weights.shape == (2, HEADS, 20, 20)
    assert (weights >= 0).all()
    assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), atol=2e-6, rtol=0)


@every_case
def test_constant_values_pass_unchanged(case):
    attention = make(case)
    if not (attention.per_head and attention.has_weights()) or "row_sums" in attention.exempt_from:
        pytest.skip("its rows are no distributions")
    q, k, v = attention.project(tokens(2, 20))
    output = attention.attend(q, k, torch.ones_like(v), **where(attention, 20))
    assert_close(output, torch.ones_like(output), atol=2e-6, rtol=0)


@every_case
def test_output_attentions_gives_the_same_output(case):
    attention, x = make(case), tokens(2, 20)
    grid = where(attention, 20)
    if not attention.has_weights():
        with pytest.raises(ValueError, match=r"output_attentions.*Mechanisms that do: .*softmax"):
            attention(x, output_attentions=True, **grid)
        return
    shown = attention(x, output_attentions=True, **grid)
    assert_close(shown.hidden_states, attention(x, **grid).hidden_states, atol=1e-9, rtol=1e-9)
    q, k, _ = attention.project(x)
    rows = torch.tensor([0, 7, 19])
    assert_close(attention.weights(q, k, rows=rows, **grid), shown.weights[:, :, rows], atol=1e-12, rtol=1e-9)


@every_causal_case
def test_the_future_moves_nothing(case):
    attention, x = make(case, torch.float32), tokens(2, 90, torch.float32)
    before = attention(x).hidden_states
    for t in (1, 33, 89):
        changed = x.clone()
        changed[:, t:] = 5 * tokens(2, 90 - t, torch.float32, seed=t)
        assert_close(attention(changed).hidden_states[:, :t], before[:, :t], atol=5e-6, rtol=5e-6)


@every_causal_case
@pytest.mark.parametrize("cuts", [[1], [40], [7, 8, 70], list(range(1, 83))], ids=["1", "40", "7-8-70", "steps"])
def test_any_split_gives_the_same(case, cuts):
    attention, x = make(case), tokens(2, 83)
    whole = attention(x).hidden_states
    with torch.no_grad():  # in-place updates allowed
        pieces, state = run_in_pieces(attention, x, cuts)
    assert_close(pieces, whole, atol=1e-9, rtol=1e-9)
    _, at_once = run_in_pieces(attention, x, [])
    later = tokens(2, 5, seed=9)
    assert_close(attention(later, state=state)[0], attention(later, state=at_once)[0], atol=1e-9, rtol=1e-9)


@every_causal_case
def test_gradients_flow_through_the_state(case):
    attention, x = make(case), tokens(2, 30).requires_grad_()
    whole, (pieces, _) = attention(x).hidden_states, run_in_pieces(attention, x, [11, 12, 20])
    cotangent = torch.randn_like(whole)
    for a, b in zip(
        gradients(whole, cotangent, attention, x), gradients(pieces, cotangent, attention, x), strict=True
    ):
        if a is not None:
            assert_close(a, b, atol=1e-8, rtol=1e-8)


@every_causal_case
def test_recurrent_state_does_not_grow(case):
    attention = make(case)
    if not attention.supports_recurrent:
        pytest.skip("its state is a KV cache")
    _, early = run_in_pieces(attention, tokens(2, 3), [])
    _, late = run_in_pieces(attention, tokens(2, 300), [])
    assert {key: x.shape for key, x in early.items()} == {key: x.shape for key, x in late.items()}
    assert all(x.shape[0] == 2 for x in late.values()), "the batch comes first"


@every_causal_case
def test_step_takes_one_token_with_and_without_a_length(case):
    attention = make(case)
    if not attention.per_head:
        pytest.skip("has no per-head step")
    q, k, v = attention.project(tokens(2, 1))
    with torch.no_grad():
        flat, _ = attention.step(q[:, :, 0], k[:, :, 0], v[:, :, 0], attention.initial_state(2, dtype=q.dtype))
        long, _ = attention.step(q, k, v, attention.initial_state(2, dtype=q.dtype))
    assert_close(flat, long[:, :, 0])


@every_causal_case
def test_padding_stays_out_of_the_state(case):
    attention, x, mask = make(case), tokens(3, 20), padding(3, 20, "left")
    whole = attention(x, key_mask=mask).hidden_states
    pieces, _ = run_in_pieces(attention, x, [3, 9], key_mask=mask)
    assert_close(pieces, whole, atol=1e-9, rtol=1e-9)


@every_case
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_real_token(case, side):
    attention, x, mask = make(case), tokens(3, 24), padding(3, 24, side)
    if "padding" in attention.exempt_from or attention.needs_grid:
        pytest.skip("declared to depend on padding, or on a grid, which padding would change")
    hostile = x.masked_fill(~mask.unsqueeze(-1), float("nan"))
    padded = attention(hostile, key_mask=mask).hidden_states
    for row in range(3):
        alone = attention(x[row : row + 1, mask[row]]).hidden_states
        assert_close(padded[row : row + 1, mask[row]], alone, atol=1e-9, rtol=1e-9)


@every_case
def test_a_row_without_keys_gives_zero(case):
    attention, x = make(case, output_bias=False), tokens(2, 12).requires_grad_()
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1] = False
    output = attention(x, key_mask=mask, **where(attention, 12)).hidden_states
    if not attention.fixed_length or case[0] == "kerformer":  # tables with biases answer even to silence
        assert_close(output[1], torch.zeros_like(output[1]))
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert torch.isfinite(gradient).all()


@every_case
def test_permuting_tokens_permutes_outputs(case):
    attention, x = make(case), tokens(2, 20)
    if "permutation" in attention.exempt_from or attention.causal:
        pytest.skip("knows the order")
    order = torch.randperm(20)
    assert_close(attention(x[:, order])[0], attention(x)[0][:, order], atol=1e-9, rtol=1e-9)


@every_case
def test_rows_of_a_batch_do_not_meet(case):
    attention, x = make(case), tokens(4, 24)
    grid = where(attention, 24)
    together = attention(x, **grid).hidden_states
    assert_close(attention(x[1:2], **grid).hidden_states, together[1:2], atol=1e-10, rtol=1e-10)
    x[2] = float("nan")
    assert_close(attention(x, **grid).hidden_states[[0, 1, 3]], together[[0, 1, 3]], atol=1e-10, rtol=1e-10)


@every_case
def test_gradcheck(case):
    attention, x = make(case), tokens(1, 6).requires_grad_()
    if "derivatives" in attention.exempt_from:
        pytest.skip("a stand-in for what jumps")
    grid = where(attention, 6)  # in one random direction, which an error in any would show in
    assert torch.autograd.gradcheck(
        lambda x: attention(x, **grid).hidden_states, (x,), atol=1e-5, rtol=1e-3, fast_mode=True
    )


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "12x"])
def test_finite(case, dtype):
    attention = make(case, dtype).train()
    x = tokens(2, 70, dtype, scale=1.0 if dtype == torch.bfloat16 else 12.0).requires_grad_()
    output = attention(x, **where(attention, 70)).hidden_states
    assert output.dtype == dtype
    output.float().square().mean().backward()
    assert torch.isfinite(output).all()
    assert torch.isfinite(x.grad).all()


@every_case
def test_autocast_keeps_float32_sums(case):
    attention, x = make(case, torch.float32), tokens(2, 40, torch.float32)
    grid = where(attention, 40)
    with torch.autocast("cpu", torch.bfloat16):
        low = attention(x, **grid).hidden_states
    assert torch.isfinite(low).all()
    if case[0] == "lsh" or "derivatives" in attention.exempt_from:
        return  # a rounded token may fall into another bucket
    exact = attention(x, **grid).hidden_states
    assert (low.float() - exact).norm() < 0.1 * exact.norm()


@every_case
def test_every_parameter_receives_a_gradient(case):
    attention = make(case).train()
    if not list(attention.parameters()):
        pytest.skip("has no parameters")
    attention(tokens(2, 20), **where(attention, 20)).hidden_states.square().sum().backward()
    without = [name for name, p in attention.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    dead = {"mixture_logits"} if case[1].get("num_keys") == 1 else set()  # the softmax of a single number is 1
    # A constant added to all keys cancels in a softmax over them: their bias can't learn.
    dead |= {"k_proj.bias"} if case[0] in ("softmax", "linformer") else set()
    assert set(without) <= dead, without


@every_case
def test_eval_is_deterministic_and_ignores_dropout(case):
    attention, x = make(case, dropout=0.5, output_dropout=0.5), tokens(2, 20)
    grid = where(attention, 20)
    first = attention(x, **grid).hidden_states
    assert torch.equal(first, attention(x, **grid).hidden_states)
    assert_close(first, attention.reference(x, **grid), atol=1e-9, rtol=1e-9)


@every_case
def test_dropout_acts_in_training_and_stays_finite(case):
    attention, x = make(case, dropout=0.5).train(), tokens(2, 20)
    if case[0] in ("fnet", "mixer"):
        pytest.skip("has no weights to drop")
    grid = where(attention, 20)
    a, b = attention(x, **grid).hidden_states, attention(x, **grid).hidden_states
    assert torch.isfinite(a).all()
    assert not torch.equal(a, b)


@every_case
def test_save_and_reload_is_bit_equal(case, tmp_path):
    from safetensors.torch import load_file, save_file

    attention, x = make(case, torch.float32), tokens(2, 20, torch.float32)
    save_file(attention.state_dict(), tmp_path / "attention.safetensors")
    name, options, causal = case
    reloaded = build_attention(name, HIDDEN, HEADS, causal=causal, **json.loads(json.dumps(options)))
    reloaded.load_state_dict(load_file(tmp_path / "attention.safetensors"))
    grid = where(attention, 20)
    assert torch.equal(reloaded.eval()(x, **grid).hidden_states, attention(x, **grid).hidden_states)


# Cross-attention.


@every_cross_case
@pytest.mark.parametrize(("queries", "keys"), [(7, 30), (30, 7), (12, 12), (1, 1)])
def test_cross_attention_equals_naive(case, queries, keys):
    attention = make(case)
    x, context = tokens(2, queries).requires_grad_(), tokens(2, keys, seed=4).requires_grad_()
    mask = padding(2, keys, "right") if keys > 2 else None
    fast = attention(x, context=context, context_mask=mask).hidden_states
    slow = attention.reference(x, context=context, context_mask=mask)
    assert fast.shape == x.shape
    assert_close(fast, slow, atol=1e-9, rtol=1e-9)
    wanted = [x, context, *attention.parameters()]
    cotangent = torch.randn(fast.shape, dtype=fast.dtype, generator=torch.Generator().manual_seed(3))
    found, expected = (torch.autograd.grad(y, wanted, cotangent, allow_unused=True) for y in (fast, slow))
    for a, b in zip(found, expected, strict=True):
        if a is not None:
            assert_close(a, b, atol=1e-8, rtol=1e-8)
    assert found[1].abs().sum() > 0, "what is looked at matters"


@every_cross_case
def test_a_sequence_as_its_own_context_is_self_attention(case):
    attention, x, mask = make(case), tokens(2, 15), padding(2, 15, "right")
    assert_close(attention(x, context=x).hidden_states, attention(x).hidden_states, atol=1e-12, rtol=1e-12)
    cross, own = attention(x, context=x, context_mask=mask)[0], attention(x, key_mask=mask)[0]
    assert_close(cross[mask], own[mask], atol=1e-12, rtol=1e-12)


@every_cross_case
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_the_context_changes_nothing(case, side):
    attention, x, context = make(case), tokens(3, 5), tokens(3, 24, seed=4)
    mask = padding(3, 24, side)
    hostile = context.masked_fill(~mask.unsqueeze(-1), float("nan"))
    padded = attention(x, context=hostile, context_mask=mask).hidden_states
    for row in range(3):
        alone = attention(x[row : row + 1], context=context[row : row + 1, mask[row]]).hidden_states
        assert_close(padded[row : row + 1], alone, atol=1e-9, rtol=1e-9)


@every_cross_case
def test_queries_of_cross_attention_do_not_meet(case):
    attention, x, context = make(case), tokens(2, 9), tokens(2, 14, seed=4)
    whole = attention(x, context=context).hidden_states
    assert_close(attention(x[:, 3:5], context=context).hidden_states, whole[:, 3:5], atol=1e-10, rtol=1e-10)


@every_cross_case
def test_output_attentions_of_cross_attention(case):
    attention, x, context = make(case), tokens(2, 6), tokens(2, 10, seed=4)
    if not attention.has_weights():
        with pytest.raises(ValueError, match="does not support output_attentions"):
            attention(x, context=context, output_attentions=True)
        return
    mask = padding(2, 10, "left")
    shown = attention(x, context=context, context_mask=mask, output_attentions=True)
    plain = attention(x, context=context, context_mask=mask)
    assert shown.weights.shape == (2, HEADS, 6, 10)
    assert_close(shown.hidden_states, plain.hidden_states, atol=1e-9, rtol=1e-9)
    assert (shown.weights[1, :, :, :2] == 0).all(), "padding has no weight"
    if "row_sums" not in attention.exempt_from:
        assert_close(shown.weights.sum(-1), torch.ones_like(shown.weights[..., 0]), atol=2e-6, rtol=0)


@every_cross_case
def test_cross_attention_trains_in_float32_and_bfloat16(case):
    for dtype in (torch.float32, torch.bfloat16):
        attention = make(case, dtype, dropout=0.2).train()
        x, context = tokens(2, 9, dtype).requires_grad_(), tokens(2, 21, dtype, seed=4).requires_grad_()
        output = attention(x, context=context, context_mask=padding(2, 21, "right")).hidden_states
        output.float().square().sum().backward()
        assert output.dtype == dtype
        assert output.isfinite().all() and x.grad.isfinite().all() and context.grad.isfinite().all()


@every_name
def test_cross_attention_is_refused_in_words(name):
    attention, x = build_attention(name, HIDDEN, HEADS), tokens(2, 6, torch.float32)
    grid, context, mask = where(attention, 6), tokens(2, 4, torch.float32), torch.ones(2, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="context_mask is given without context"):
        attention(x, context_mask=mask, **grid)
    if not attention.supports_cross:
        able = r"Mechanisms that do: .*linear_elu.*softmax"
        with pytest.raises(ValueError, match=rf"'{name}' attention does not support context.*{able}"):
            attention(x, context=context, **grid)
        return
    for match, given in {
        r"can't be combined with key_mask of self-attention: give context_mask": {"key_mask": mask.new_ones(2, 6)},
        r"can't be combined with position_ids": {"position_ids": torch.arange(6)},
        r"can't be combined with grid": {"grid": (2, 3)},
        r"can't be combined with state": {"state": {"S": torch.zeros(2)}},
        r"context must be \(2, tokens, 16\), got \(3, 4, 16\)": {"context": tokens(3, 4, torch.float32)},
        r"context must be \(2, tokens, 16\), got \(2, 4, 7\)": {"context": context[..., :7]},
        r"context must be \(2, tokens, 16\), got \(4, 16\)": {"context": context[0]},
        r"context \(2, 0, 16\) is empty": {"context": context[:, :0]},
        r"context_mask must be boolean": {"context_mask": mask.float()},
        r"context_mask must be \(batch, tokens\) = \(2, 4\), got \(2, 6\)": {"context_mask": mask.new_ones(2, 6)},
    }.items():
        with pytest.raises(ValueError, match=match):
            attention(x, **{"context": context, **given})
    if attention.supports_causal:
        with pytest.raises(ValueError, match=f"context needs causal=False.*'{name}'"):
            build_attention(name, HIDDEN, HEADS, causal=True)(x, context=context)


def test_who_can_look_at_another_sequence():
    expected = {"softmax", "linear_elu", "performer", "efficient", "gaussian_mixture", "probabilistic", "kerformer"}
    assert expected <= set(list_attentions(supports_cross=True))
    with pytest.raises(ValueError, match=r"'xcit' attention does not support context"):
        build_attention("xcit", HIDDEN, HEADS)(tokens(2, 6, torch.float32), context=tokens(2, 6, torch.float32))


@every_name
def test_options_survive_json(name):
    defaults = attention_options(name)
    assert json.loads(json.dumps(defaults)) == defaults
    defaults.pop("projections")
    assert isinstance(build_attention(name, HIDDEN, HEADS, **json.loads(json.dumps(defaults))), Attention)
    for options in OPTIONS.get(name, []):
        assert json.loads(json.dumps(options)) == options
        assert set(options) <= set(attention_options(name))


@every_name
def test_a_mechanism_says_what_it_is(name):
    cls = get_attention(name)
    assert cls.name == name
    assert cls.paper
    assert cls.cost
    assert cls.supports_causal or not cls.supports_recurrent


def test_the_contract_is_small():
    assert len(FLAGS) <= 8


@every_case
def test_exemptions_are_from_known_laws(case):
    assert set(make(case).exempt_from) <= set(LAWS)


@every_name
def test_asking_for_what_it_cannot_do(name):
    if not get_attention(name).supports_causal:
        with pytest.raises(ValueError, match=f"'{name}'.*causal=True.*Mechanisms that do: .*linear_elu.*softmax"):
            build_attention(name, HIDDEN, HEADS, causal=True)
    else:
        with pytest.raises(ValueError, match="state needs causal=True"):
            attention = build_attention(name, HIDDEN, HEADS)
            attention(tokens(2, 6, torch.float32), state={"S": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"unknown option 'windw'.*valid: .*dropout"):
        build_attention(name, HIDDEN, HEADS, windw=3)


@every_name
def test_bad_input_is_named(name):
    attention = build_attention(name, HIDDEN, HEADS)
    grid, x = where(attention, 6), tokens(2, 6, torch.float32)
    with pytest.raises(ValueError, match=r"hidden_states must be \(batch, tokens, 16\), got \(2, 6, 7\)"):
        attention(x[..., :7], **grid)
    with pytest.raises(ValueError, match="empty"):
        attention(x[:, :0], **grid)
    if attention.supports_key_mask:
        with pytest.raises(ValueError, match=r"key_mask must be boolean.*torch.float32"):
            attention(x, key_mask=torch.ones(2, 6), **grid)
        with pytest.raises(ValueError, match=r"key_mask must be \(batch, tokens\) = \(2, 6\), got \(2, 5\)"):
            attention(x, key_mask=torch.ones(2, 5, dtype=torch.bool), **grid)
    with pytest.raises(ValueError, match=r"position_ids must be \(2, 6\), got \(3,\)"):
        attention(x, position_ids=torch.arange(3), **grid)
    if attention.needs_grid:
        with pytest.raises(ValueError, match="needs grid"):
            attention(x)
        with pytest.raises(ValueError, match=r"grid=\(2, 2\) has 4 cells, but there are 6 tokens"):
            attention(x, grid=(2, 2))
    if attention.fixed_length:
        short = build_attention(name, HIDDEN, HEADS, max_length=5)
        with pytest.raises(ValueError, match="max_length=5"):
            short(x, **grid)


@every_causal_case
def test_a_state_of_another_batch_is_refused(case):
    attention = make(case)
    with pytest.raises(ValueError, match="state holds 3 rows, but hidden_states has 2"):
        attention(tokens(2, 4), state=attention.initial_state(3, dtype=torch.float64))
