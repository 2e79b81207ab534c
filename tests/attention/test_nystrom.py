"""Nyström attention: where it is exact, and that batch mates are strangers."""

import pytest
import torch
import torch.nn.functional as F
from cases import HEADS, HIDDEN, make
from torch.testing import assert_close

from hf_efficient.attention import build_attention


def heads(length=12):
    return tuple(torch.randn(2, HEADS, length, 8, dtype=torch.float64) for _ in range(3))


def nystrom(**options):
    return make(("nystrom", options, False))


@pytest.mark.parametrize("landmarks", [12, 50])
def test_as_many_landmarks_as_tokens_is_softmax_attention(landmarks):
    q, k, v = heads()
    exact = F.scaled_dot_product_attention(q, k, v)
    assert_close(nystrom(num_landmarks=landmarks, pinv_iterations=40).attend(q, k, v), exact, atol=1e-7, rtol=1e-7)
    few = (nystrom(num_landmarks=landmarks, pinv_iterations=2).attend(q, k, v) - exact).abs().max()
    assert few > 1e-3, "iterations matter"


def test_the_iteration_finds_the_inverse():
    K = torch.randn(2, HEADS, 7, 7, dtype=torch.float64).softmax(-1)
    Z = nystrom(pinv_iterations=40)._pinv(K)
    assert_close(Z, torch.linalg.pinv(K), atol=1e-7, rtol=1e-7)


def test_landmarks_are_means_of_segments():
    """With the exact pseudo-inverse in place of its iteration."""
    attention = nystrom(num_landmarks=5, pinv_iterations=40)
    q, k, v = heads()
    segment = torch.arange(12) * 5 // 12  # ⌊tm/N⌋: 12 tokens don't divide by 5
    assert torch.bincount(segment).tolist() == [3, 2, 3, 2, 2]
    mean = F.one_hot(segment, 5).double().T
    mean = mean / mean.sum(-1, keepdim=True)
    q_mean, k_mean, scale = mean @ q, mean @ k, 8**-0.5
    left, right = (q @ k_mean.mT * scale).softmax(-1), (q_mean @ k.mT * scale).softmax(-1)
    middle = (q_mean @ k_mean.mT * scale).softmax(-1)
    expected = left @ torch.linalg.pinv(middle) @ right @ v
    assert_close(attention.attend(q, k, v), expected, atol=1e-7, rtol=1e-7)


def test_constant_values_stay_constant():
    q, k, v = heads()
    ones = torch.ones_like(v)
    found = nystrom(num_landmarks=5, pinv_iterations=40).attend(q, k, ones)
    assert_close(found, ones, atol=1e-9, rtol=0)
    weights = nystrom(num_landmarks=5, pinv_iterations=40).weights(q, k)
    assert weights.min() < 0, "rows sum to 1 without being distributions"


def test_batch_mates_do_not_change_each_other():
    attention = nystrom(num_landmarks=5)
    q, k, v = heads()
    expected = attention.attend(q, k, v)[:1]
    q[1] *= 30  # its K has other norms
    k[1] *= 30
    assert_close(attention.attend(q, k, v)[:1], expected, atol=1e-12, rtol=1e-9)


def test_the_convolution_of_the_values():
    plain, added = nystrom(num_landmarks=5), nystrom(num_landmarks=5, conv_kernel=3)
    q, k, v = heads()
    kernel = added.conv_weight  # (H, 3)
    padded = F.pad(v, (0, 0, 1, 1))
    taps = sum(kernel[:, t, None, None] * padded[:, :, t : t + 12] for t in range(3))
    assert_close(added.attend(q, k, v) - plain.attend(q, k, v), taps, atol=1e-11, rtol=1e-9)
    for wrong in (4, -3):
        with pytest.raises(ValueError, match=f"conv_kernel={wrong}"):
            build_attention("nystrom", HIDDEN, HEADS, conv_kernel=wrong)
