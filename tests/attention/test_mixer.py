"""The token mixing of MLP-Mixer: a perceptron along the sequence, by position."""

import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close

from hf_efficient.attention import build_attention


def mixer(**options):
    return make(("mixer", {"max_length": 10, "token_dim": 6, **options}, False))


def test_the_formula():
    attention, x = mixer(), tokens(2, 10)
    hidden = F.gelu(x.mT @ attention.W1.T + attention.b1)  # (B, d, T)
    expected = (hidden @ attention.W2.T + attention.b2).mT
    assert_close(attention(x).hidden_states, expected, atol=1e-12, rtol=1e-9)


def test_a_shorter_input_is_a_zero_padded_one():
    attention, x = mixer(), tokens(2, 7)
    padded = F.pad(x, (0, 0, 0, 3))
    assert_close(attention(x).hidden_states, attention(padded).hidden_states[:, :7], atol=1e-12, rtol=1e-9)


def test_channels_do_not_meet():
    attention, x = mixer(), tokens(2, 10)
    changed = x.clone()
    changed[..., 3] += 1
    moved = (attention(changed).hidden_states - attention(x).hidden_states).abs().amax((0, 1)) > 1e-9
    assert moved.tolist() == [channel == 3 for channel in range(HIDDEN)]


def test_dropped_tokens_equal_masked_ones():
    attention, x = mixer(), tokens(2, 10)
    kept = torch.tensor([[0, 2, 3, 7, 9], [1, 2, 5, 6, 8]])
    mask = torch.zeros(2, 10, dtype=torch.bool).scatter_(1, kept, True)
    index = kept.unsqueeze(-1).expand(2, 5, HIDDEN)
    dropped = attention(x.gather(1, index), position_ids=kept).hidden_states
    masked = attention(x, key_mask=mask, position_ids=torch.arange(10)).hidden_states
    assert_close(dropped, masked.gather(1, index), atol=1e-12, rtol=1e-9)


def test_sizes():
    attention = build_attention("mixer", HIDDEN, HEADS, max_length=30)
    assert {name: tuple(p.shape) for name, p in attention.named_parameters()} == {
        "W1": (15, 30),
        "b1": (15,),
        "W2": (30, 15),
        "b2": (30,),
    }
    assert build_attention("mixer", HIDDEN, HEADS, max_length=1).token_dim == 1


def test_resampling_keeps_the_prefix_and_the_sums():
    attention = mixer()
    with torch.no_grad():
        attention.W1[0, 1:] = 0.4
    before = {name: p.detach().clone() for name, p in attention.named_parameters()}
    attention.resample((3, 3), (3, 3))
    assert_close(dict(attention.named_parameters()), before, atol=1e-12, rtol=1e-12)
    attention.resample((3, 3), (5, 4))
    assert attention.W1.shape == attention.W2.mT.shape == (6, 21)
    assert torch.equal(attention.W1[:, 0], before["W1"][:, 0])
    assert torch.equal(attention.W2[0], before["W2"][0])
    assert_close(attention.W1[0, 1:].sum(), before["W1"][0, 1:].sum(), atol=1e-9, rtol=1e-9)
    x = tokens(2, 21)
    assert_close(attention(x).hidden_states, attention.reference(x), atol=1e-10, rtol=1e-9)
