"""Signatures: Chen's identity, what they don't see, and what their first levels are."""

import math
from itertools import combinations_with_replacement, product

import pytest
import torch
from torch.testing import assert_close

from hf_efficient.models.imagesig.signature import ImageSignatures, signature, signature_width


def path(points=9, channels=3, *batch):
    return torch.randn(*batch, points, channels, dtype=torch.float64).cumsum(-2)


def split_levels(flat, channels, depth):
    """(width,) -> [scalar 1, (d,), (d, d), ...]"""
    sizes = [channels**level for level in range(1, depth + 1)]
    levels = [x.view((channels,) * level) for level, x in enumerate(flat.split(sizes), 1)]
    return [torch.ones((), dtype=flat.dtype), *levels]


def chen(x, y):
    """The product of two signatures in the truncated tensor algebra."""
    outer = lambda a, b: torch.tensordot(a, b, dims=0)  # noqa: E731
    return [sum(outer(x[i], y[level - i]) for i in range(level + 1)) for level in range(len(x))]


def exponential(step, depth):
    """exp_⊗(Δ): the signature of one straight line"""
    powers = [torch.ones((), dtype=step.dtype)]
    for _ in range(depth):
        powers.append(torch.tensordot(powers[-1], step, dims=0))
    return [power / math.factorial(level) for level, power in enumerate(powers)]


def flat(levels):
    return torch.cat([x.flatten() for x in levels[1:]])


@pytest.mark.parametrize(("channels", "depth"), [(3, 4), (1, 4), (2, 5), (3, 1)])
def test_it_is_the_product_of_its_straight_lines(channels, depth):
    points = path(7, channels)
    product_of_lines = exponential(points[1] - points[0], depth)
    for step in points.diff(dim=0)[1:]:
        product_of_lines = chen(product_of_lines, exponential(step, depth))
    assert_close(signature(points, depth), flat(product_of_lines), atol=1e-10, rtol=1e-10)
    assert signature(points, depth).shape == (signature_width(channels, depth),)


def test_it_is_the_iterated_integrals():
    """∫ dx_a dx_b dx_c over t₁ < t₂ < t₃ of a path of straight lines, term by term: equal steps share a simplex."""
    steps = (points := path(6)).diff(dim=0)
    found = split_levels(signature(points, 3), 3, 3)[3]
    for word in product(range(3), repeat=3):
        total = 0.0
        for places in combinations_with_replacement(range(5), 3):
            simplex = math.prod(math.factorial(places.count(m)) for m in set(places))
            total += math.prod(steps[m, letter].item() for m, letter in zip(places, word, strict=True)) / simplex
        assert found[word].item() == pytest.approx(total, abs=1e-10)


def test_chens_identity_at_every_split():
    points = path(10)
    whole = signature(points, 4)
    for cut in range(1, 9):
        first, second = (split_levels(signature(part, 4), 3, 4) for part in (points[: cut + 1], points[cut:]))
        assert_close(flat(chen(first, second)), whole, atol=1e-9, rtol=1e-9)


def test_speed_is_not_seen():
    """Neither repeated pixels nor pixels between two others on their line."""
    points = path(8)
    expected = signature(points, 4)
    repeated = points[torch.tensor([0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 7])]
    assert_close(signature(repeated, 4), expected, atol=1e-10, rtol=1e-10)
    between = torch.lerp(points[2], points[3], 0.3).unsqueeze(0)
    assert_close(signature(torch.cat([points[:3], between, points[3:]]), 4), expected, atol=1e-10, rtol=1e-10)
    assert_close(signature(points + torch.randn(3, dtype=torch.float64), 4), expected, atol=1e-9, rtol=1e-9)
    assert (signature(points.flip(0), 4) - expected).abs().max() > 0.1


def test_the_first_levels():
    points = path(12)
    _, shift, second, *_ = split_levels(signature(points, 2), 3, 2)
    assert_close(shift, points[-1] - points[0])
    assert_close((second + second.T) / 2, torch.outer(shift, shift) / 2)
    closed = torch.cat([points, points[:1]])
    for a, b in ((0, 1), (0, 2), (1, 2)):  # the shoelace formula of the path and its chord
        x, y = closed[:, a], closed[:, b]
        area = (x[:-1] * y[1:] - x[1:] * y[:-1]).sum() / 2
        assert_close((second[a, b] - second[b, a]) / 2, area, atol=1e-10, rtol=1e-10)


def test_a_path_back_and_forth_is_no_path():
    points = path(5)
    there_and_back = torch.cat([points, points.flip(0)])
    assert_close(signature(there_and_back, 4), torch.zeros(120, dtype=torch.float64), atol=1e-9, rtol=0)


def test_rows_and_columns_of_images():
    images = torch.rand(2, 3, 5, 7, dtype=torch.float64)
    found = ImageSignatures(4, (1.0, 1.0, 1.0), two_directions=True)(images)
    assert found.shape == (2, 5 + 7, 120)
    assert_close(found[1, 3], signature(images[1, :, 3].T, 4))
    assert_close(found[1, 5 + 2], signature(images[1, :, :, 2].T, 4))
    mirrored = ImageSignatures(4, (1.0, 1.0, 1.0))(images.flip(2))
    assert_close(mirrored, found[:, :5].flip(1))


def test_normalised_pixels_become_colours_again():
    colours = torch.rand(2, 3, 4, 6, dtype=torch.float64)
    mean, std = (torch.tensor(x, dtype=torch.float64).view(3, 1, 1) for x in ((0.4, 0.5, 0.6), (0.2, 0.25, 0.3)))
    found = ImageSignatures(4, (0.2, 0.25, 0.3))((colours - mean) / std)
    assert_close(found, ImageSignatures(4, (1.0, 1.0, 1.0))(colours), atol=1e-10, rtol=1e-10)


def test_levels_may_be_rescaled_to_be_of_a_size():
    """exp_⊗(Δ) without its factorials: all levels of a straight line are then powers of its step."""
    images = torch.rand(2, 3, 4, 2, dtype=torch.float64)
    found = ImageSignatures(4, (1.0, 1.0, 1.0), rescale_levels=True)(images)[1, 2]
    step = images[1, :, 2, 1] - images[1, :, 2, 0]
    powers = split_levels(found, 3, 4)
    assert_close(powers[4], torch.einsum("a,b,c,d->abcd", step, step, step, step))
    assert_close(powers[2], torch.outer(step, step))


def test_gradients_flow():
    images = torch.rand(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ImageSignatures(3, (1.0, 2.0), two_directions=True), images)


def test_an_image_of_one_column_has_no_path():
    assert torch.equal(signature(torch.rand(2, 1, 3), 4), torch.zeros(2, 120))
