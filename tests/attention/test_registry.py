"""Registering, listing and building: clear answers to wrong requests, and modules that move and copy as others do."""

import copy
import importlib
import pickle
import sys

import pytest
import torch
from cases import CASES, HEADS, HIDDEN, case_id, make, tokens, where

from hf_efficient.attention import (
    Attention,
    attention_options,
    build_attention,
    get_attention,
    list_attentions,
    register_attention,
)
from hf_efficient.attention import registry as registry_module

every_case = pytest.mark.parametrize("case", CASES, ids=case_id)


@pytest.fixture
def registry(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry_module, "_MECHANISMS", dict(registry_module._MECHANISMS))


def test_an_unknown_mechanism_is_answered_with_the_known_ones():
    for ask in (get_attention, attention_options, lambda name: build_attention(name, HIDDEN, HEADS)):
        with pytest.raises(ValueError, match=r"unknown attention 'sofmax'; known: axial, .*softmax, .*xcit"):
            ask("sofmax")


def test_heads_must_divide_the_width_or_have_one_of_their_own():
    with pytest.raises(ValueError, match=r"hidden_size=16 does not divide by num_heads=3.*head_dim"):
        build_attention("softmax", 16, 3)
    assert build_attention("softmax", 16, 3, head_dim=7).o_proj.weight.shape == (16, 21)
    for field, sizes in {"hidden_size": (0, 2), "num_heads": (16, -1)}.items():
        with pytest.raises(ValueError, match=f"{field}=.*must be a positive integer"):
            build_attention("softmax", *sizes)


def test_a_name_is_taken_once(registry):
    with pytest.raises(ValueError, match=r"'softmax' is already registered by hf_efficient.attention.softmax.Softmax"):

        @register_attention
        class Softmax(Attention):
            pass

    with pytest.raises(ValueError, match="'linformer' is already registered"):

        @register_attention("linformer")
        class Mine(Attention):
            pass

    assert get_attention("softmax").__module__ == "hf_efficient.attention.softmax"
    register_attention(get_attention("softmax"))  # as when a module is reloaded
    with pytest.raises(TypeError, match="subclasses of Attention"):
        register_attention(torch.nn.Linear)


def test_names_come_from_the_class_or_are_given(registry):
    @register_attention
    class TwoWords2D(Attention):
        pass

    @register_attention("my-name")
    class Other(Attention):
        pass

    @register_attention()
    class Called(Attention):
        pass

    for name, cls in (("two_words2_d", TwoWords2D), ("my-name", Other), ("called", Called)):
        assert get_attention(name) is cls
        assert cls.name == name
    assert list_attentions() == sorted(list_attentions())


def test_listing_by_what_they_can_do():
    causal, recurrent = list_attentions(supports_causal=True), list_attentions(supports_recurrent=True)
    assert set(recurrent) < set(causal) < set(list_attentions())
    assert set(causal) | set(list_attentions(supports_causal=False)) == set(list_attentions())
    assert "window" in list_attentions(needs_grid=True, has_weights=True)
    assert "axial" in list_attentions(needs_grid=True, has_weights=False)
    assert list_attentions(needs_grid=True, supports_causal=True) == []
    with pytest.raises(ValueError, match=r"unknown filter 'causal'; mechanisms have supports_causal, .*has_weights"):
        list_attentions(causal=True)


THIRD_PARTY = """
from hf_efficient.attention import Attention, register_attention


@register_attention
class MeanOfValues(Attention):
    supports_causal = True

    def __init__(self, hidden_size, num_heads, *, strength: float = 1.0, **common):
        super().__init__(hidden_size, num_heads, **common)
        self.strength = strength

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        return self.strength * v.mean(2, keepdim=True).expand_as(v)
"""


def test_a_mechanism_from_another_package(registry, tmp_path, monkeypatch):
    package = tmp_path / "someones_attention"
    package.mkdir()
    (package / "__init__.py").write_text(THIRD_PARTY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "someones_attention", raising=False)
    assert "mean_of_values" not in list_attentions()
    importlib.import_module("someones_attention")
    assert "mean_of_values" in list_attentions()
    assert attention_options("mean_of_values")["strength"] == 1.0
    attention = build_attention("mean_of_values", HIDDEN, HEADS, strength=2.0)
    x = tokens(2, 5, torch.float32)
    expected = attention.o_proj(2 * attention.v_proj(x).mean(1, keepdim=True)).expand_as(x)
    torch.testing.assert_close(attention(x).hidden_states, expected)
    with pytest.raises(ValueError, match=r"unknown option 'strenght'.*strength"):
        build_attention("mean_of_values", HIDDEN, HEADS, strenght=2.0)
    with pytest.raises(ValueError, match=r"'fnet'.*causal=True.*Mechanisms that do: .*mean_of_values"):
        build_attention("fnet", HIDDEN, HEADS, causal=True)


# Every option of every mechanism; those that all share are asked about once.

COMMON = tuple(attention_options("softmax"))


def wrong_options():
    for name in list_attentions():
        for option in attention_options(name):
            for value in ("nonsense", -1):
                if option not in COMMON:
                    yield name, option, value
    for option in COMMON:
        for value in ("nonsense", -1):
            yield "softmax", option, value


@pytest.mark.parametrize(("name", "option", "value"), wrong_options())
def test_a_wrong_value_is_named(name, option, value):
    with pytest.raises(ValueError, match=f"^{option}={value!r}"):
        build_attention(name, HIDDEN, HEADS, **{option: value})


# Modules are built on the meta device by `from_pretrained`, then filled.


def meta_twin(case):
    name, options, causal = case
    with torch.device("meta"):
        attention = build_attention(name, HIDDEN, HEADS, causal=causal, **options)
    tensors = [*attention.parameters(), *attention.buffers()]
    assert all(x.is_meta for x in tensors)
    plain = [key for m in attention.modules() for key, x in vars(m).items() if isinstance(x, torch.Tensor)]
    assert not plain, "would stay on the meta device for ever"
    return attention.eval()


@every_case
@pytest.mark.parametrize("how", ["emptied", "assigned"])
def test_built_on_meta_then_loaded(case, how):
    attention, x = make(case, torch.float32), tokens(2, 9, torch.float32)
    twin, weights = meta_twin(case), copy.deepcopy(attention.state_dict())
    if how == "emptied":
        twin.to_empty(device="cpu")
    twin.load_state_dict(weights, assign=how == "assigned")
    grid = where(attention, 9)
    assert torch.equal(twin(x, **grid).hidden_states, attention(x, **grid).hidden_states)


@every_case
def test_resetting_fills_everything(case):
    attention, x = meta_twin(case).to_empty(device="cpu"), tokens(2, 9, torch.float32)
    with torch.no_grad():
        for tensor in (*attention.parameters(), *attention.buffers()):
            tensor.fill_(7 if tensor.dtype == torch.long else torch.nan)
    for module in reversed(list(attention.modules())):
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    fresh = build_attention(case[0], HIDDEN, HEADS, causal=case[2], **case[1])
    for name, tensor in fresh.named_buffers():
        assert torch.equal(attention.get_buffer(name), tensor), name
    for name, parameter in attention.named_parameters():
        assert torch.isfinite(parameter).all(), name
    assert torch.isfinite(attention(x, **where(attention, 9)).hidden_states).all()


@every_case
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_are_equal_and_independent(case, duplicate):
    attention, x = make(case, torch.float32), tokens(2, 9, torch.float32)
    grid = where(attention, 9)
    before = attention(x, **grid).hidden_states
    twin = duplicate(attention)
    assert torch.equal(twin(x, **grid).hidden_states, before)
    with torch.no_grad():
        for tensor in (*twin.parameters(), *twin.buffers()):
            tensor.zero_()
    assert torch.equal(attention(x, **grid).hidden_states, before)
