"""What augmentations do to images, boxes and labels, and whose random numbers they use."""

from dataclasses import asdict

import pytest
import torch
import torch.nn.functional as F

from hf_efficient.data.augmentation import (
    Augmentation,
    Draws,
    cut_out,
    erase,
    flip_and_shift,
    flip_and_shift_boxes,
    mix,
    resized_crop,
)
from hf_efficient.data.soft_labels import soften

ALL = Augmentation(
    flip=True, crop=4, resized_crop=0.3, randaugment=2, erase=0.25, mixup=0.2, cutmix=1.0, label_smoothing=0.1
)
NO_SHIFT = torch.zeros(6, 2, dtype=torch.int64)


def images(count: int = 6, height: int = 8, width: int = 10) -> torch.Tensor:
    return torch.randint(1, 256, (count, 3, height, width), dtype=torch.uint8)


def test_flips_flip():
    x, flips = images(), torch.tensor([True, False, True, False, False, True])
    flipped = flip_and_shift(x, flips, NO_SHIFT)
    assert torch.equal(flipped[flips], x[flips].flip(3)) and torch.equal(flipped[~flips], x[~flips])


def test_crops_are_translations():
    x = images()
    shifts = torch.tensor([[0, 0], [3, 0], [0, -2], [-3, 2], [1, 1], [3, -3]])
    moved = flip_and_shift(x, torch.zeros(6, dtype=torch.bool), shifts)
    for image, result, (down, right) in zip(x, moved, shifts.tolist(), strict=True):
        expected = F.pad(image, (3, 3, 3, 3))[:, 3 - down : 11 - down, 3 - right : 13 - right]
        assert torch.equal(result, expected)
    assert moved[1, :, :3].max() == 0 and torch.equal(moved[1, :, 3:], x[1, :, :-3])


def test_a_flip_comes_before_the_shift():
    x = images(1)
    moved = flip_and_shift(x, torch.tensor([True]), torch.tensor([[0, 2]]))
    assert torch.equal(moved[:, :, :, 2:], x.flip(3)[:, :, :, :-2])


def test_boxes_go_where_their_objects_go():
    """A white rectangle on black, found again by its pixels."""
    height, width = 16, 20
    x = torch.zeros(6, 1, height, width, dtype=torch.uint8)
    corners = torch.tensor(
        [[2, 3, 8, 9], [0, 0, 20, 16], [5, 5, 6, 6], [15, 2, 20, 10], [0, 12, 4, 16], [3, 3, 12, 5]]
    )
    for image, (left, top, right, bottom) in zip(x, corners.tolist(), strict=True):
        image[:, top:bottom, left:right] = 255
    size = torch.tensor([width, height])
    boxes = torch.cat([(corners[:, :2] + corners[:, 2:]) / 2 / size, (corners[:, 2:] - corners[:, :2]) / size], 1)
    flips = torch.tensor([True, False, False, True, False, True])
    shifts = torch.tensor([[0, 0], [3, -4], [-2, 1], [4, 4], [-4, 4], [-4, 0]])
    moved = flip_and_shift(x, flips, shifts)
    found = flip_and_shift_boxes(boxes, flips, shifts, (height, width))
    for image, (cx, cy, w, h) in zip(moved, found.tolist(), strict=True):
        expected = torch.zeros(height, width, dtype=torch.bool)
        left, top = round((cx - w / 2) * width), round((cy - h / 2) * height)
        expected[top : top + round(h * height), left : left + round(w * width)] = True
        assert torch.equal(image[0] == 255, expected)


def test_boxes_that_leave_the_image_are_empty():
    box = torch.tensor([[0.05, 0.5, 0.1, 0.2]])
    found = flip_and_shift_boxes(box, torch.tensor([False]), torch.tensor([[0, -3]]), (20, 20))
    assert found[0, 2] == 0 and ((found >= 0) & (found <= 1)).all()


def test_resized_crops_stretch_a_part():
    x, square = images(1, 8, 8), 0.5  # the draw of aspect 1
    whole = resized_crop(x, cut_out(torch.tensor([[1.0, square, 0.3, 0.8]]), 0.08))
    assert torch.equal(whole, x)
    quarter = resized_crop(x, cut_out(torch.tensor([[0.0, square, 0.0, 1.0]]), 0.25))  # at the top, on the right
    expected = F.interpolate(x[:, :, :4, 4:].float(), 8, mode="bilinear")
    assert (quarter[..., 1:-1, 1:-1] - expected[..., 1:-1, 1:-1]).abs().max() <= 0.51  # but where neighbours shine in
    ramp = torch.arange(32, dtype=torch.uint8).expand(2000, 1, 32, 32)
    spans = resized_crop(ramp, cut_out(torch.rand(2000, 4), 0.08)).float().flatten(1)
    shares = (spans.amax(1) - spans.amin(1) + 1) / 32
    assert shares.min() > 0.2 and shares.max() == 1  # the narrowest is sqrt(0.08 * 3 / 4)


def test_erased_areas():
    x = torch.ones(4000, 1, 32, 32)
    erased = erase(x, torch.rand(4000, 5), 0.25) == 0
    areas = erased.float().mean((1, 2, 3))
    assert (areas > 0).float().mean() == pytest.approx(0.25, abs=0.03)
    areas = areas[areas > 0]
    assert areas.min() > 0.015 and areas.max() < 0.36 and areas.mean() == pytest.approx(0.175, abs=0.02)
    rows, columns = erased[:, 0].any(2).sum(1), erased[:, 0].any(1).sum(1)
    assert torch.equal(rows * columns, erased.sum((1, 2, 3)))  # rectangles
    assert erased.float().mean(0).min() > 0  # anywhere
    assert torch.equal(erase(x, torch.rand(4000, 5), 0.0), x)


def test_mixup_weighs_labels_as_pixels():
    ours, theirs = torch.ones(50, 3, 4, 4), torch.zeros(50, 3, 4, 4)
    mixtures = torch.rand(50, 4)
    mixtures[:, 1] = 0
    mixed, weight = mix(ours, theirs, mixtures)
    assert torch.equal(weight, mixtures[:, 0])
    assert torch.allclose(mixed, weight[:, None, None, None].expand_as(mixed))


def test_cutmix_weighs_labels_as_pixels():
    ours, theirs = torch.ones(500, 3, 32, 32), torch.zeros(500, 3, 32, 32)
    mixtures = torch.rand(500, 4)
    mixtures[:, 1] = 1
    mixtures[0, 0], mixtures[1, 0] = 1.0, 0.0
    mixtures[1, 2:] = 0.5
    mixed, weight = mix(ours, theirs, mixtures)
    assert set(mixed.unique().tolist()) == {0.0, 1.0}
    assert torch.allclose(mixed.mean((1, 2, 3)), weight, atol=1e-6)
    assert weight[0] == 1 and weight[1] == 0
    pasted = mixed[:, 0] == 0
    assert torch.equal(pasted.any(2).sum(1) * pasted.any(1).sum(1), pasted.sum((1, 2)))
    inside = ((mixtures[:, 2:] - 0.5).abs() < 0.2).all(1) & (mixtures[:, 0] > 0.7)  # wholly in the image
    assert (weight - mixtures[:, 0])[inside].abs().max() < 0.05


def test_soft_labels():
    labels, partners, weight = torch.tensor([0, 2, 1]), torch.tensor([1, 2, 0]), torch.tensor([0.7, 0.4, 1.0])
    assert soften(labels, 3, 0.0, partners, weight).tolist() == [
        pytest.approx([0.7, 0.3, 0]),
        [0, 0, 1],
        [0, 1, 0],
    ]
    smooth = soften(labels, 4, 0.1)
    assert smooth[0].tolist() == pytest.approx([0.925, 0.025, 0.025, 0.025]) and torch.allclose(
        smooth.sum(1), torch.ones(3)
    )


def test_numbers_belong_to_seed_epoch_and_image():
    names = ("flips", "shifts", "operations", "erasures", "partners", "mixtures", "mosaics")
    same, other = Draws(ALL, 100, 7, 3), [Draws(ALL, 100, 7, 4), Draws(ALL, 100, 8, 3)]
    for name in names:
        assert torch.equal(getattr(Draws(ALL, 100, 7, 3), name), getattr(same, name)), name
        for draws in other:
            assert not torch.equal(getattr(draws, name), getattr(same, name)), name


def test_one_augmentation_leaves_the_others_numbers_alone():
    alone, together = Draws(Augmentation(flip=True), 100, 0, 0), Draws(ALL, 100, 0, 0)
    assert torch.equal(alone.flips, together.flips)
    assert torch.equal(Draws(Augmentation(erase=0.5), 100, 0, 0).erasures, together.erasures)


def test_numbers_have_their_laws():
    draws = Draws(Augmentation(flip=True, crop=2, mixup=0.2, cutmix=1.0, mix_probability=0.8), 20_000, 0, 0)
    assert draws.flips.float().mean() == pytest.approx(0.5, abs=0.02)
    assert draws.shifts.unique().tolist() == [-2, -1, 0, 1, 2]
    assert draws.partners.sort().values.tolist() == list(range(20_000))
    share, cuts = draws.mixtures[:, 0], draws.mixtures[:, 1] > 0
    assert (share == 1).float().mean() == pytest.approx(0.2, abs=0.02)
    assert cuts.float().mean() == pytest.approx(0.5, abs=0.02)
    mixed = share < 1
    assert share[cuts & mixed].var() == pytest.approx(1 / 12, abs=0.005)  # Beta(1, 1)
    assert share[~cuts & mixed].var() == pytest.approx(1 / (4 * 1.4), abs=0.01)  # Beta(0.2, 0.2)
    assert Draws(Augmentation(cutmix=1.0), 100, 0, 0).mixtures[:, 1].min() == 1
    assert Draws(Augmentation(mixup=1.0), 100, 0, 0).mixtures[:, 1].max() == 0
    assert not Draws(Augmentation(), 100, 0, 0).flips.any()


def test_fields_are_plain():
    assert Augmentation(**asdict(ALL)) == ALL
    assert all(isinstance(value, bool | int | float) for value in asdict(ALL).values())
    assert not Augmentation().softens_labels and not Augmentation(mixup=0.2, mix_probability=0).mixes
    assert Augmentation(label_smoothing=0.1).softens_labels and Augmentation(cutmix=1).softens_labels


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"crop": -1}, ValueError, "crop=-1 must not be negative"),
        ({"crop": 1.5}, TypeError, "crop=1.5 must be of type int"),
        ({"crop": True}, TypeError, "crop=True must be of type int"),
        ({"flip": "yes"}, TypeError, "flip='yes' must be of type bool"),
        ({"erase": 1.5}, ValueError, "erase=1.5 must be at most 1"),
        ({"resized_crop": 8.0}, ValueError, "resized_crop=8.0 must be at most 1"),
        ({"mixup": float("nan")}, ValueError, "mixup=nan must not be negative"),
        ({"randaugment_magnitude": 11}, ValueError, "randaugment_magnitude=11 must be at most 10"),
        ({"label_smoothing": 1.0}, ValueError, "label_smoothing=1.0 must be below 1"),
    ],
)
def test_wrong_values_are_named(fields, error, message):
    with pytest.raises(error, match=message):
        Augmentation(**fields)
