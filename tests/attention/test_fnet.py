"""FNet: a Fourier transform of both axes."""

import pytest
import torch
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close

from hf_efficient.attention import build_attention


def test_it_is_the_transform_of_both_axes():
    x = tokens(2, 13)
    expected = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
    assert_close(make(("fnet", {}, False))(x).hidden_states, expected, atol=1e-10, rtol=1e-9)


def test_it_is_not_normalised():
    x = torch.ones(1, 5, HIDDEN, dtype=torch.float64)
    output = make(("fnet", {}, False))(x).hidden_states
    assert_close(output[0, 0, 0], torch.tensor(5.0 * HIDDEN, dtype=torch.float64))
    assert output.flatten()[1:].abs().max() < 1e-10


def test_padding_is_zeroed_but_counts():
    attention, x = make(("fnet", {}, False)), tokens(2, 13)
    mask = torch.arange(13).expand(2, 13) < 9
    zeroed = x.masked_fill(~mask.unsqueeze(-1), 0)
    masked = attention(x, key_mask=mask).hidden_states
    assert_close(masked, attention(zeroed).hidden_states, atol=1e-10, rtol=1e-9)
    assert (masked[:, :9] - attention(x[:, :9]).hidden_states).abs().max() > 1
    assert "padding" in attention.exempt_from


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_it_has_no_parameters_and_runs_in_any_precision(dtype):
    attention, x = build_attention("fnet", HIDDEN, HEADS), tokens(2, 13, dtype)
    assert not list(attention.parameters())
    output = attention(x).hidden_states
    assert output.dtype == dtype
    assert_close(output, torch.fft.fft2(x.float()).real.to(dtype))
