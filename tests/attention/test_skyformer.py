"""Skyformer: the kernel it approximates, its landmarks and its inverse."""

import pytest
import torch
from cases import HEADS, HIDDEN, make
from torch.testing import assert_close

from hf_efficient.attention import build_attention


def heads(length, batch=2):
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(batch, HEADS, length, 8, dtype=torch.float64, generator=generator) for _ in range(3))


def skyformer(**options):
    return make(("skyformer", options, False))


def gaussian(q, k):
    return torch.exp(-torch.cdist(q, k).square() / (2 * 8**0.5))


def test_with_every_token_a_landmark_it_is_the_gaussian_kernel():
    q, k, v = heads(12)
    exact = gaussian(q, k) @ v
    assert_close(skyformer(num_landmarks=24, gamma=1e-9).attend(q, k, v), exact, atol=1e-6, rtol=1e-6)
    assert (skyformer(num_landmarks=4).attend(q, k, v) - exact).norm() > 0.1 * exact.norm(), "the test can tell"


def test_landmarks_are_evenly_spaced_over_real_tokens():
    attention, (q, _, _) = skyformer(num_landmarks=6), heads(12)
    index, filled = attention.chosen(q, None)
    assert index.tolist() == [[[2, 6, 10]] * 2] * 2 and filled.all()
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, :6] = False  # six left, in the back
    mask[1, 2:] = False  # two left: fewer than landmarks
    index, filled = attention.chosen(q, mask)
    assert index[0, 0].tolist() == [7, 9, 11]
    assert filled.tolist() == [[True] * 6, [True, True, False] * 2]
    assert index[0, 1, :2].tolist() == [0, 1]


def test_random_landmarks_are_different_tokens_of_seed_and_layer():
    def places(**options):
        attention = build_attention("skyformer", HIDDEN, HEADS, landmarks="random", num_landmarks=20, **options)
        return attention.chosen(heads(30)[0], None)[0]

    one = places()
    assert all(row.unique().numel() == 10 for row in one.flatten(0, 1))
    assert not torch.equal(one[0], one[1]), "queries and keys of their own"
    assert torch.equal(one, places())
    assert not torch.equal(one, places(seed=1)) and not torch.equal(one, places(layer_idx=1))


def test_iterations_approach_the_inverse():
    q, k, v = heads(40)
    exact = skyformer(num_landmarks=32).attend(q, k, v)
    few, many = (
        (skyformer(num_landmarks=32, inverse="newton", newton_iterations=n).attend(q, k, v) - exact).norm()
        for n in (2, 8)
    )
    assert many < 1e-6 * exact.norm() < few


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="num_landmarks=5 must be even"):
        build_attention("skyformer", HIDDEN, HEADS, num_landmarks=5)
    with pytest.raises(ValueError, match="gamma=0 must be a positive number"):
        build_attention("skyformer", HIDDEN, HEADS, gamma=0)
