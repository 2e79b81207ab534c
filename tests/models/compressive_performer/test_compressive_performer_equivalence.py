"""One function, however it is computed: by the literal algorithm, in one call, in many, with padding, in a batch."""

import pytest
import torch
from compressive_performer_cases import ARMS, EVERY, SHAPES, in_calls, make, text
from compressive_performer_reference import Reference
from torch.testing import assert_close

LENGTH = 45  # five segments and a part: memory fills, is compressed and forgotten
every_model = pytest.mark.parametrize("fields", EVERY.values(), ids=EVERY)
CLOSE = {"atol": 1e-9, "rtol": 1e-9}
CUTS = {
    "segments": [8, 16, 24, 32, 40],
    "across segments": [3, 21, 22, 37],
    "token by token": list(range(1, LENGTH)),
    "prompt, then tokens": list(range(19, LENGTH)),
}
# The arms are cut in every way; the others, whose memory is kept by the same code, in all of these ways at once.
SOME_OF_EACH = [3, 8, 21, 22, 23, 24, 25, 37]


def with_cases(cases, mixed):
    """Every arm with every case, every other model with the mixed one."""
    arms = [
        pytest.param(fields, case, id=f"{arm}-{name}") for arm, fields in ARMS.items() for name, case in cases.items()
    ]
    return arms + [pytest.param(EVERY[name], mixed, id=name) for name in EVERY if name not in ARMS]


@torch.no_grad()
def whole(model, ids, **kwargs):
    return model(ids, **kwargs).logits


@every_model
def test_it_is_the_algorithm(fields):
    model, ids = make(**fields), text(1, LENGTH)
    with torch.no_grad():
        expected = Reference(model).logits(ids[0])
    assert_close(whole(model, ids)[0], expected, **CLOSE)


@pytest.mark.parametrize(("fields", "cuts"), with_cases(CUTS, SOME_OF_EACH))
def test_any_split_into_calls_gives_the_same(fields, cuts):
    model, ids = make(**fields), text(2, LENGTH)
    logits, _ = in_calls(model, ids, cuts)
    assert_close(logits, whole(model, ids), **CLOSE)


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_any_split_gives_the_same_with_memory_passed_on(cuts):
    model, ids = make(), text(2, LENGTH)
    logits, _ = in_calls(model, ids, cuts, name="memory")
    assert_close(logits, whole(model, ids), **CLOSE)


def test_a_memory_passed_on_is_left_as_it_is():
    model, ids = make(), text(2, LENGTH)
    _, memory = in_calls(model, ids, [19])
    with torch.no_grad():
        first = model(ids, memory=memory)
        again = model(ids, memory=memory)
        in_place = model(ids, past_key_values=memory)
    assert torch.equal(first.logits, again.logits) and torch.equal(first.logits, in_place.logits)
    assert in_place.past_key_values is in_place.memory is memory
    assert first.memory is not memory and memory.get_seq_length() == 2 * LENGTH


@pytest.mark.parametrize("fields", [{}, {"attention": "softmax"}], ids=["performer", "softmax"])
def test_gradients_enabled_or_not_is_the_same(fields):
    model, ids = make(**fields), text(2, LENGTH)
    memory, logits = None, []
    for part in ids.split([11, 1, 1, 7, 25], 1):
        outputs = model(part, memory=memory)
        memory = outputs.memory
        logits.append(outputs.logits)
    assert_close(torch.cat(logits, 1), whole(model, ids), **CLOSE)
    for layer in memory.layers:
        assert not any(x.requires_grad for x in [*layer.memory[:3], *layer.memory.state.values()])


@pytest.mark.parametrize("fields", ARMS.values(), ids=ARMS)
def test_training_mode_computes_the_same(fields):
    model, ids = make(**fields), text(2, LENGTH)
    model.train()
    memory, logits = None, []
    for part in ids.split([8, 16, 5, 16], 1):
        outputs = model(part, memory=memory)
        memory = outputs.memory
        logits.append(outputs.logits)
    assert_close(torch.cat(logits, 1), whole(model.eval(), ids), **CLOSE)


def test_the_first_segment_is_memoryless():
    model, ids = make(), text(2, 20)
    bare = make(memory_length=0, compressed_memory_length=0)
    bare.load_state_dict(model.state_dict(), strict=False)
    assert_close(whole(model, ids)[:, :8], whole(bare, ids)[:, :8], **CLOSE)
    assert (whole(model, ids)[:, 8:] - whole(bare, ids)[:, 8:]).abs().max() > 1e-3


@pytest.mark.parametrize("fields", ARMS.values(), ids=ARMS)
def test_the_future_moves_nothing(fields):
    """As the calls above show for all models: each is computed before there is a next."""
    model, ids = make(**fields), text(2, 30)
    logits = whole(model, ids)
    for at in (3, 8, 17):
        other = ids.clone()
        other[:, at:] = text(2, 30 - at, seed=5)
        changed = whole(model, other)
        assert_close(changed[:, :at], logits[:, :at], **CLOSE)
        assert (changed[:, at:] - logits[:, at:]).abs().max() > 1e-6


@pytest.mark.parametrize("at", [2, 12, 20])
def test_the_past_is_remembered(at):
    model, ids = make(), text(1, 32)
    other = ids.clone()
    other[:, at] = (other[:, at] + 1) % 23
    assert (whole(model, ids)[:, 24:] - whole(model, other)[:, 24:]).abs().max() > 1e-6


PADDED = {
    "left": ["." * 15 + "x" * 30, "x" * 45, "." * 42 + "xxx"],
    "right": ["x" * 30 + "." * 15, "x" * 40 + "." * 5, "xxx" + "." * 42],
    "holes": ["xx.x" * 11 + "x", "." * 10 + "x" * 22 + "." * 13, ".x.x." * 9],
}


def mask_of(rows):
    return torch.tensor([[c == "x" for c in row] for row in rows]).long()


MIXED = [PADDED["left"][0], PADDED["right"][0], PADDED["holes"][0]]


@pytest.mark.parametrize(("fields", "mask"), with_cases(PADDED, MIXED))
def test_padding_changes_nothing(fields, mask):
    """Nor do the other rows of a batch."""
    if fields.get("attention") == "local":  # a gap takes up room in the window
        mask = [*MIXED[:2], PADDED["holes"][1]]
    model, ids, mask = make(**fields), text(3, 45), mask_of(mask)
    batch = whole(model, ids, attention_mask=mask)
    calls, _ = in_calls(model, ids, [7, 8, 9, 26, 44], mask=mask)
    for row in range(3):
        real = mask[row].bool()
        alone = whole(model, ids[row : row + 1, real])[0]
        assert_close(batch[row, real], alone, **CLOSE)
        assert_close(calls[row, real], alone, **CLOSE)


def test_padding_may_hold_anything():
    model, ids, mask = make(), text(3, 45), mask_of(PADDED["left"])
    other = torch.where(mask.bool(), ids, text(3, 45, seed=9))
    real = mask.bool()
    assert torch.equal(whole(model, ids, attention_mask=mask)[real], whole(model, other, attention_mask=mask)[real])


@pytest.mark.parametrize("fields", [{}, {"attention": "softmax"}, {"attention": "local"}], ids=lambda f: str(f))
def test_rows_go_on_from_different_places(fields):
    """Ragged prompts, then single tokens through several ends of segments, which rows reach at different times."""
    model, ids, mask = make(**fields), text(3, 70), torch.ones(3, 70, dtype=torch.long)
    mask[0, :13], mask[2, :18] = 0, 0
    logits, _ = in_calls(model, ids, list(range(20, 70)), mask=mask)
    for row, start in enumerate((13, 0, 18)):
        assert_close(logits[row, start:], whole(model, ids[row : row + 1, start:])[0], **CLOSE)


@pytest.mark.parametrize("fields", [{}, {"attention": "softmax"}], ids=["performer", "softmax"])
@pytest.mark.parametrize("at", [16, 21])
@pytest.mark.parametrize("name", ["memory", "past_key_values"])
def test_a_row_that_is_reset_begins_anew(fields, at, name):
    model, ids = make(**fields), text(3, 60)
    _, memory = in_calls(model, ids[:, :at], [])
    reset = torch.tensor([False, True, False])
    with torch.no_grad():
        first = model(ids[:, at : at + 25], reset=reset, **{name: memory})
        second = model(ids[:, at + 25 :], **{name: first.memory})
    logits = torch.cat([first.logits, second.logits], 1)
    assert_close(logits[1], whole(model, ids[1:2, at:])[0], **CLOSE)
    assert_close(logits[[0, 2]], whole(model, ids[[0, 2]])[:, at:], **CLOSE)


def test_resetting_all_is_a_fresh_start():
    model, ids = make(), text(2, 30)
    _, memory = in_calls(model, text(2, 21, seed=7), [])
    memory.reset()
    assert memory.get_seq_length() == 0
    with torch.no_grad():
        assert torch.equal(model(ids, past_key_values=memory).logits, whole(model, ids))


def test_training_on_ragged_rows_computes_the_same():
    model, ids, mask = make(), text(3, 45), mask_of(PADDED["left"])
    expected = whole(model, ids, attention_mask=mask)
    outputs = model.train()(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
    assert_close(outputs.logits[mask.bool()], expected[mask.bool()], **CLOSE)
    outputs.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_half_precision_stays_close():
    model, ids = make(torch.float32), text(2, 45)
    expected = whole(model, ids)
    for cuts in ([], list(range(20, 45))):
        logits, _ = in_calls(make(torch.float32).to(torch.bfloat16), ids, cuts)
        assert logits.dtype == torch.bfloat16 and logits.isfinite().all()
        assert (logits.float() - expected).norm() < 0.1 * expected.norm()


def test_autocast():
    model, ids = make(torch.float32), text(2, 45)
    with torch.autocast("cpu", torch.bfloat16):
        logits, _ = in_calls(model, ids, [9, 10, 30])
    assert (logits.float() - whole(model, ids)).norm() < 0.1 * logits.float().norm()


@pytest.mark.parametrize(
    ("fields", "before"),
    [(fields, before) for fields in ARMS.values() for before in (0, 50)] + [(x, 21) for x in SHAPES.values()],
    ids=[f"{name}-{before}" for name in ARMS for before in (0, 50)] + list(SHAPES),
)
def test_a_prompt_of_which_only_the_last_logits_are_asked_for(fields, before):
    """Layers skim what nobody looks back to: the same logits, and the same memory, in every layer."""
    model, ids = make(num_hidden_layers=3, **fields), text(2, before + 91)
    with torch.no_grad():
        outs = []
        for keep in (0, 1, 20):
            cache = model(ids[:, :before], use_cache=True).past_key_values if before else None
            outs.append(model(ids[:, before:], past_key_values=cache, use_cache=True, logits_to_keep=keep))
        for keep, short in zip((1, 20), outs[1:], strict=True):
            assert_close(short.logits, outs[0].logits[:, -keep:])
            for mine, full in zip(short.memory.layers, outs[0].memory.layers, strict=True):
                assert mine.seen == full.seen
                for name in ("compressed", "recent", "segment"):
                    assert_close(getattr(mine.memory, name), getattr(full.memory, name))
        following = text(2, 30, seed=1)
        logits = [model(following, past_key_values=out.past_key_values).logits for out in outs]
    assert_close(logits[1], logits[0])
    assert_close(logits[2], logits[0])


def test_a_long_prompt_passes_only_the_layers_that_somebody_looks_back_to():
    model, passed = make(num_hidden_layers=4), []
    for i, layer in enumerate(model.model.layers):
        layer.register_forward_hook(lambda *_, i=i: passed.append(i))
    with torch.no_grad():
        model(text(1, 80), use_cache=True, logits_to_keep=1)
    # a memory of 8 + 2 * 6 tokens reaches into the third segment before
    assert [passed.count(i) for i in range(4)] == [10, 7, 4, 1]
