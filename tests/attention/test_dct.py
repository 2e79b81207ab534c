"""DCT-Former: the transform is scipy's, exact for long sequences too, and it keeps what is slow."""

import numpy as np
import pytest
import torch
from cases import HEADS, make, tokens
from torch.testing import assert_close

from hf_efficient.attention import build_attention


def test_the_transform_is_the_orthonormal_dct():
    fft = pytest.importorskip("scipy.fft")
    x = torch.zeros(1, 1, 21, 1, dtype=torch.float64)
    C = build_attention("dct", 4, 1, num_coefficients=21)._transform(x, None)[0]
    assert_close(C, torch.from_numpy(fft.dct(np.eye(21), axis=0, norm="ortho")), atol=1e-12, rtol=0)
    assert_close(C @ C.mT, torch.eye(21, dtype=torch.float64), atol=1e-12, rtol=0)


def test_long_sequences_are_as_exact_in_float32():
    attention = build_attention("dct", 4, 1, num_coefficients=512)
    empty = torch.zeros(1, 1, 20_000, 1)
    low, high = attention._transform(empty, None)[0], attention._transform(empty.double(), None)[0]
    assert (low.double() - high).abs().max() < 1e-6 * high.abs().max()


def test_constant_values_pass_with_one_coefficient():
    """The mean is the only frequency: its softmax is 1."""
    attention = make(("dct", {"num_coefficients": 1}, False))
    q, k, v = attention.project(tokens(2, 20))
    assert_close(attention.attend(q, k, v), v.mean(2, keepdim=True).expand(2, HEADS, 20, -1))
