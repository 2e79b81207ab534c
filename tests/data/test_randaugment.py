"""Each operation does what Pillow's of that name does."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from hf_efficient.data import randaugment as ops
from hf_efficient.data.randaugment import CHANGES, MOVES, OPERATIONS, move_matrices, randaugment, sample


def photos(count: int = 4, height: int = 12, width: int = 16) -> torch.Tensor:
    """Smooth, with noise, and not of full range"""
    random = np.random.default_rng(0)
    ramp = np.linspace(30, 200, width)[None, None, None] * random.uniform(0.5, 1, (count, 3, 1, 1))
    return torch.from_numpy((ramp + random.integers(0, 20, (count, 3, height, width))).astype(np.uint8))


def as_image(pixels: torch.Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def as_pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


PILLOW = {
    "identity": lambda image, s: image,
    "brightness": lambda image, s: ImageEnhance.Brightness(image).enhance(1 + 0.9 * s),
    "contrast": lambda image, s: ImageEnhance.Contrast(image).enhance(1 + 0.9 * s),
    "colour": lambda image, s: ImageEnhance.Color(image).enhance(1 + 0.9 * s),
    "sharpness": lambda image, s: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * s),
    "posterize": lambda image, s: ImageOps.posterize(image, 8 - round(4 * abs(s))),
    "solarize": lambda image, s: ImageOps.solarize(image, round(256 * (1 - abs(s)))),
    "autocontrast": lambda image, s: ImageOps.autocontrast(image),
    "equalize": lambda image, s: ImageOps.equalize(image),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("strength", [-1.0, -0.5, 0.0, 0.5, 1.0])
def test_changes_are_pillows(name, strength):
    images = photos()
    result = CHANGES[name](images, torch.full((4,), strength))
    expected = torch.stack([as_pixels(PILLOW[name](as_image(image), strength)) for image in images])
    assert result.dtype == torch.uint8
    # Pillow cuts fractions off, we round
    assert (result.int() - expected.int()).abs().max() <= (0 if name in ("identity", "posterize", "solarize") else 2)


@pytest.mark.parametrize("name", ["brightness", "contrast", "colour", "sharpness", "posterize", "solarize"])
def test_strength_0_changes_nothing(name):
    assert torch.equal(CHANGES[name](photos(), torch.zeros(4)), photos())


@pytest.mark.parametrize("name", CHANGES)
def test_flat_images_survive(name):
    for value in (0, 128, 255):
        flat = torch.full((1, 3, 2, 2), value, dtype=torch.uint8)
        assert CHANGES[name](flat, torch.ones(1)).unique().numel() == 1


@pytest.mark.parametrize("name", MOVES)
def test_moves_of_strength_0_are_the_identity(name):
    operation = torch.full((4,), MOVES.index(name))
    images = photos()
    assert torch.equal(sample(images, move_matrices(operation, torch.zeros(4), images.shape[2:])), images)


def test_translations_shift_whole_pixels():
    images = photos(1, 10, 20)
    for name, dim, size in (("translate_x", 3, 20), ("translate_y", 2, 10)):
        by = round(0.45 * size * 0.5)
        matrix = move_matrices(torch.tensor([MOVES.index(name)]), torch.tensor([0.5]), (10, 20))
        moved = sample(images, matrix)
        assert torch.equal(moved.narrow(dim, 0, size - by), images.narrow(dim, by, size - by))
        assert moved.narrow(dim, size - by, by).max() == 0


@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y"])
@pytest.mark.parametrize("size", [(16, 16), (12, 20)])
def test_moves_are_pillows(name, size):
    """Pillow takes the same map of pixels, counted from the corner."""
    height, width = size
    smooth = torch.nn.functional.interpolate(photos(1, 4, 4), size, mode="bilinear")
    matrix = move_matrices(torch.tensor([MOVES.index(name)]), torch.tensor([0.7]), size)
    (a, b, _), (c, d, _) = matrix[0].tolist()
    x, y = width / 2, height / 2
    coefficients = (a, b, x - a * x - b * y, c, d, y - c * x - d * y)
    image = as_image(smooth[0])
    expected = as_pixels(image.transform(image.size, Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR))
    inside = (slice(None), slice(5, height - 5), slice(5, width - 5))  # edges are treated differently
    difference = sample(smooth, matrix)[0][inside].int() - expected[inside].int()
    assert difference.abs().max() <= 2 and expected[inside].max() > 0


def test_a_rotation_keeps_angles_in_images_that_are_not_square():
    matrix = move_matrices(torch.tensor([MOVES.index("rotate")]), torch.tensor([1.0]), (10, 30))[0, :, :2]
    assert torch.allclose(matrix @ matrix.T, torch.eye(2), atol=1e-6)


def test_each_image_gets_its_own_operations():
    images = photos(64)
    draws = torch.rand(64, 2, 2)
    together = randaugment(images, draws, 9.0)
    assert together.dtype == torch.uint8 and torch.equal(images, photos(64))
    alone = torch.cat([randaugment(images[i : i + 1], draws[i : i + 1], 9.0) for i in range(64)])
    assert torch.equal(together, alone)
    assert len({bool(torch.equal(a, b)) for a, b in zip(together, images, strict=True)}) == 2  # some stay as they are


def test_operations_come_one_after_the_other():
    images = photos(1)
    steps = [OPERATIONS.index(name) for name in ("equalize", "brightness")]
    draws = torch.tensor([[[(step + 0.5) / len(OPERATIONS), 0.9] for step in steps]])
    expected = ops.brightness(ops.equalize(images, torch.ones(1)), torch.tensor([0.5]))
    assert torch.equal(randaugment(images, draws, 5.0), expected)


def test_magnitude_is_the_distance_from_the_original():
    images = photos(32)
    draws = torch.rand(32, 1, 2)
    draws[:, :, 0] = OPERATIONS.index("brightness") / len(OPERATIONS) + 0.01
    distances = [(randaugment(images, draws, m).int() - images.int()).abs().sum() for m in (0, 3, 6, 9)]
    assert distances[0] == 0 and distances == sorted(distances)
