"""Patch selection: values against loops over pixels, laws of choice, schedules, and what is saved."""

import copy
import itertools
import math
import warnings
from collections import Counter

import pytest
import torch

from hf_efficient.layers.patch_embedding import gather_patches, join_patches
from hf_efficient.layers.patch_selection import (
    HEURISTICS,
    SCHEDULES,
    PatchSelector,
    contrast,
    decayed,
    entropy,
    gumbel_noise,
    log_weights,
    luminance,
    top_indices,
    variance,
)

VALUES = {"contrast": contrast, "variance": variance, "entropy": entropy}
HALF = (0.5, 0.5, 0.5)


def naive_value(heuristic: str, pixels: list[float]) -> float:
    """F of one patch, as the formulas read."""
    count = len(pixels)
    if heuristic == "contrast":
        return (max(pixels) - min(pixels)) / (max(pixels) + min(pixels) + 1e-8)
    if heuristic == "variance":
        mean = sum(pixels) / count
        return sum((x - mean) ** 2 for x in pixels) / (count - 1)
    shares = [n / count for n in Counter(round(255 * x) for x in pixels).values()]
    return -sum(p * math.log2(p) for p in shares)


def naive_values(heuristic: str, grey: torch.Tensor, patch: int) -> torch.Tensor:
    rows, columns = grey.shape[1] // patch, grey.shape[2] // patch
    return torch.tensor(
        [
            [
                naive_value(
                    heuristic, image[r * patch : (r + 1) * patch, c * patch : (c + 1) * patch].flatten().tolist()
                )
                for r in range(rows)
                for c in range(columns)
            ]
            for image in grey
        ]
    )


def picture(batch=3, height=16, width=24) -> torch.Tensor:
    """Levels of 8 bits, (B, H, W), with a black, a white and a grey patch of 4 x 4."""
    grey = torch.randint(0, 256, (batch, height, width)) / 255
    grey[0, :4, :4], grey[0, :4, 4:8], grey[1, 4:8, 8:12] = 0, 1, 100 / 255
    return grey


def selector(**fields) -> PatchSelector:
    heuristic = fields.pop("heuristic", "variance")
    fields = {"patch_size": 4, "top_k": 5, "num_patches": 24, **fields}
    return PatchSelector(heuristic, **fields)


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_values_equal_loops_over_pixels(heuristic):
    grey = picture()
    torch.testing.assert_close(VALUES[heuristic](grey, 4), naive_values(heuristic, grey, 4), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_even_patches_are_worth_nothing(heuristic):
    values = VALUES[heuristic](picture(), 4)
    even = torch.stack([values[0, 0], values[0, 1], values[1, 8]])  # black, white, grey
    torch.testing.assert_close(even, torch.zeros(3), atol=1e-7, rtol=0)
    others = values.flatten().sort().values[3:]
    assert (others > 0).all() and torch.isfinite(values).all()


def test_ranges_of_values():
    grey = torch.zeros(1, 16, 32)
    grey[0, :, :16] = torch.arange(256).view(16, 16) / 255  # every level once
    grey[0, 0, 16] = 0.3  # one grey pixel on black
    torch.testing.assert_close(entropy(grey, 16)[0, 0], torch.tensor(8.0))
    torch.testing.assert_close(contrast(grey, 16)[0], torch.ones(2), atol=1e-6, rtol=0)
    assert entropy(grey, 8).max() <= 6  # log2 of 64 pixels
    torch.testing.assert_close(contrast(grey * 0.5, 16), contrast(grey, 16), atol=1e-6, rtol=0)  # whatever the light
    assert (variance(torch.rand(1, 4, 4), 1) == 0).all()  # a single pixel does not vary


def test_luminance_undoes_normalisation():
    colours = torch.randint(0, 256, (2, 3, 8, 8)) / 255
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    normalised = (colours - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    expected = 0.299 * colours[:, 0] + 0.587 * colours[:, 1] + 0.114 * colours[:, 2]
    torch.testing.assert_close(luminance(normalised, mean, std), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(luminance(normalised[:, :1], mean[:1], std[:1]), colours[:, 0], atol=1e-6, rtol=0)
    four = torch.cat([colours, colours[:, :1]], 1)
    torch.testing.assert_close(luminance(four, (0.0,) * 4, (1.0,) * 4), four.mean(1))
    beyond = luminance(torch.tensor([-9.0, 9.0]).view(2, 1, 1, 1).expand(2, 3, 4, 4), HALF, HALF)
    assert beyond[0].max() == 0 and beyond[1].min() == pytest.approx(1)
    assert luminance(normalised.bfloat16(), mean, std).dtype == torch.float32


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_nan_is_an_error(heuristic):
    pixels = torch.zeros(2, 3, 16, 24)
    pixels[1, 2, 3, 4] = torch.nan
    with pytest.raises(ValueError, match="pixel_values holds NaN"):
        selector(heuristic=heuristic).score(pixels)


def test_top_indices_are_the_largest_and_ties_go_to_the_first():
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.9, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 2.0, 2.0, 3.0]])
    assert top_indices(scores, 3).tolist() == [[1, 2, 3], [0, 1, 2], [1, 2, 4]]
    scores = torch.randint(0, 6, (50, 20)).float()
    for k in (1, 7, 20):
        expected = scores.argsort(dim=1, descending=True, stable=True)[:, :k].sort(1).values
        assert torch.equal(top_indices(scores, k), expected)


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_selection_takes_what_it_says(heuristic):
    pixels = torch.randn(3, 3, 16, 24)
    chosen = selector(heuristic=heuristic, select_at_eval=True).eval()(pixels)
    values = naive_values(heuristic, luminance(pixels, HALF, HALF), 4)
    for row, value in zip(chosen.tolist(), values, strict=True):
        assert row == sorted(set(row)) and len(row) == 5
        others = sorted(set(range(24)) - set(row))
        assert value[row].min() >= value[others].max() - 1e-6


def test_gumbel_top_k_has_the_law_of_sequential_draws():
    values, k, draws = torch.tensor([0.0, 1.0, 2.0, 5.0]), 2, 20_000
    weights = log_weights(values.unsqueeze(0)).exp()[0].double()
    noise = -torch.empty(draws, 4).exponential_(generator=torch.Generator().manual_seed(0)).log()
    seen = Counter(map(tuple, top_indices(log_weights(values.expand(draws, 4)) + noise, k).tolist()))
    share = (weights / weights.sum()).tolist()
    for pair in itertools.combinations(range(4), k):
        first, second = (share[i] for i in pair)
        expected = first * second / (1 - first) + second * first / (1 - second)  # either may come first
        deviation = math.sqrt(expected * (1 - expected) / draws)
        assert abs(seen[pair] / draws - expected) <= 4 * deviation + 1e-9, pair


def test_every_patch_stays_possible():
    weights = log_weights(torch.tensor([[0.0, 2.0], [0.0, 0.0]])).exp()
    torch.testing.assert_close(weights, torch.tensor([[2e-6 + 1e-12, 2 + 2e-6], [1e-12, 1e-12]]), rtol=1e-5, atol=0)


def test_fewer_positive_values_than_k_and_a_black_image():
    pixels = -torch.ones(2, 3, 16, 24)  # black
    pixels[0, :, 0, 0] = 1  # but for one pixel
    chosen = selector(prob=1.0)(pixels)
    assert chosen.shape == (2, 5) and 0 in chosen[0]
    runs = torch.cat([selector(prob=1.0, seed=seed)(pixels)[1] for seed in range(200)])
    counts = runs.bincount(minlength=24).double()
    assert (counts - 1000 / 24).abs().max() < 5 * math.sqrt(1000 / 24)  # all the same, so evenly


def test_schedules():
    assert [decayed(0.5, 5e-3, e) for e in (0, 1)] == [0.5, 0.5 / 1.005]
    assert decayed(0.5, 5e-3, 2) == pytest.approx(0.5 / (1.005 * 1.01))
    assert decayed(0.5, 5e-3, 20) == pytest.approx(0.18, abs=5e-3)
    assert decayed(0.5, 5e-3, 50) == pytest.approx(0.001, abs=5e-4)
    assert decayed(0.5, 5e-3, 100, "inverse_time") == pytest.approx(1 / 3)
    assert decayed(0.5, 5e-3, 100, "exponential") == pytest.approx(0.5 * math.exp(-0.5))
    assert decayed(0.5, 5e-3, 100, "linear") == pytest.approx(0.25)
    assert decayed(0.5, 5e-3, 300, "linear") == 0
    assert decayed(0.5, 5e-3, 100, "constant") == 0.5
    for schedule in SCHEDULES:
        values = [decayed(0.8, 0.01, epoch, schedule) for epoch in range(50)]
        assert values[0] == 0.8 and values == sorted(values, reverse=True)


def test_batches_are_reduced_as_often_as_prob_says():
    pixels, layer = torch.randn(1, 3, 16, 24), selector(prob=0.3, prob_schedule="constant")
    applied = [layer(pixels) is not None for _ in range(2000)]
    assert sum(applied) / 2000 == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / 2000))
    changes = sum(a != b for a, b in itertools.pairwise(applied)) / 1999
    assert changes == pytest.approx(2 * 0.21, abs=0.05)  # one batch says nothing about the next
    assert all(selector(prob=1.0)(pixels) is not None for _ in range(3))
    assert all(selector(prob=0.0)(pixels) is None for _ in range(3))


def test_evaluation_sees_the_whole_image_unless_told_otherwise():
    pixels, layer = torch.randn(2, 3, 16, 24), selector(prob=1.0).eval()
    assert layer(pixels) is None and layer.step == 0
    layer.select_at_eval = True
    assert torch.equal(layer(pixels), top_indices(layer.score(pixels), 5)) and layer.step == 0


def test_keeping_all_patches_is_no_selection():
    assert selector(prob=1.0, top_k=24)(torch.randn(2, 3, 16, 24)) is None


def test_choices_depend_on_seed_and_step_only():
    pixels = torch.randn(2, 3, 16, 24)

    def choices(layer, steps=12):
        return [None if (x := layer(pixels)) is None else x.tolist() for _ in range(steps)]

    layer = selector()
    first = choices(layer)
    torch.manual_seed(99)
    assert choices(selector()) == first  # whatever else draws
    assert choices(selector(seed=1)) != first
    again = selector()
    choices(again, 5)
    resumed = selector(seed=0)
    resumed.load_state_dict(again.state_dict())
    assert choices(resumed, 7) == first[5:] == choices(copy.deepcopy(again), 7)


def test_an_image_is_drawn_the_same_whatever_is_beside_it():
    pixels = torch.randn(4, 3, 16, 24)
    whole = selector(prob=1.0)(pixels)
    halves = [selector(prob=1.0)(half) for half in pixels.split(2)]  # as two ranks would
    assert torch.equal(torch.cat(halves), whole)
    assert len({tuple(row) for row in selector(prob=1.0)(pixels[:1].expand(4, -1, -1, -1)).tolist()}) == 1
    off = pixels * (1 + 1e-7)
    assert torch.equal(selector(prob=1.0)(off), whole)  # rounding moves no draw


def test_noise_is_gumbel_and_patches_are_unrelated():
    noise = gumbel_noise(torch.randn(4000, 1, 8, 8), 16, key=7).double()
    assert noise.mean() == pytest.approx(0.5772, abs=0.02) and noise.std() == pytest.approx(1.2825, abs=0.02)
    correlations = torch.corrcoef(noise.T) - torch.eye(16)
    assert correlations.abs().max() < 5 / math.sqrt(4000)
    other = gumbel_noise(torch.randn(4000, 1, 8, 8), 16, key=8).double()
    assert torch.corrcoef(torch.stack([noise.flatten(), other.flatten()]))[0, 1].abs() < 5 / math.sqrt(64_000)


def test_who_trains_without_saying_the_epoch_is_warned_once():
    pixels = torch.randn(1, 3, 16, 24)
    with pytest.warns(UserWarning, match="nobody says which it is: add PatchSelectionCallback") as caught:
        layer = selector()
        for _ in range(5):
            layer(pixels)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told, scheduled = selector(), selector()
        told.set_epoch(0)
        scheduled.set_share(0.5, 0.5)
        for quiet in (told, scheduled, selector(prob_schedule="constant"), selector(prob=0.0), selector().eval()):
            for _ in range(3):
                quiet(pixels)


def test_epoch_is_saved_and_lowers_prob():
    layer = selector()
    assert layer.probability() == 0.5
    layer.epoch.fill_(20)
    again = selector()
    again.load_state_dict(layer.state_dict())
    assert again.probability() == decayed(0.5, 5e-3, 20) == layer.probability(20) < layer.probability(0)


def test_images_of_another_size_keep_the_same_share():
    layer = selector(prob=1.0)  # 5 of 24
    assert layer(torch.randn(1, 3, 32, 48)).shape == (1, 20)
    assert layer(torch.randn(1, 3, 4, 8)).shape == (1, 1)
    assert layer(torch.randn(1, 3, 4, 4)) is None  # its only patch


def test_images_of_a_batch_are_ranked_by_themselves():
    pixels, layer = torch.randn(4, 3, 16, 24), selector(select_at_eval=True).eval()
    assert torch.equal(layer(pixels), torch.cat([layer(pixels[i : i + 1]) for i in range(4)]))


# Any patches, as the control.


@pytest.mark.parametrize("probabilistic", [True, False])
def test_random_patches_are_drawn_evenly_whatever_their_pixels(probabilistic):
    pixels = torch.zeros(50, 3, 16, 24)
    pixels[:, :, :4, :4] = torch.randn(50, 3, 4, 4)  # patch 0 is the only one with anything to see
    layer = selector(heuristic="random", prob=1.0, prob_schedule="constant", probabilistic=probabilistic)
    counts = torch.stack([layer(pixels).flatten().bincount(minlength=24) for _ in range(40)]).sum(0).double()
    expected = 50 * 40 * 5 / 24
    assert (counts - expected).abs().max() < 5 * math.sqrt(expected)


def test_random_patches_in_evaluation_are_the_same_of_every_image():
    layer = selector(heuristic="random", select_at_eval=True).eval()
    chosen = layer(torch.randn(4, 3, 16, 24))
    assert (
        chosen.shape == (4, 5)
        and (chosen == chosen[0]).all()
        and torch.equal(chosen, layer(torch.randn(4, 3, 16, 24)))
    )
    others = [
        selector(heuristic="random", select_at_eval=True, seed=seed).eval()(torch.randn(1, 3, 16, 24))
        for seed in range(1, 5)
    ]
    assert len({tuple(other[0].tolist()) for other in others}) > 1


# A share that is set from outside.


def test_a_share_that_is_set_is_kept_in_training_only():
    pixels, layer = torch.randn(2, 3, 16, 24), selector(prob=0.0, select_at_eval=True)
    layer.set_share(0.5, 1.0)
    assert layer(pixels).shape == (2, 12) and layer(torch.randn(2, 3, 4, 4)) is None
    layer.set_share(0.001, 1.0)
    assert layer(pixels).shape == (2, 1)
    layer.set_share(1.0, 1.0)
    assert layer(pixels) is None
    layer.set_share(None, 1.0)
    assert layer(pixels).shape == (2, 5) and layer.probability() == 1.0 and layer.probability(0) == 0.0
    layer.set_share(0.5)
    assert layer(pixels) is None and layer.eval()(pixels).shape == (2, 5)


def test_shares_and_probabilities_that_are_none_are_named():
    for share in (0, 1.5):
        with pytest.raises(ValueError, match=rf"share={share} of the patches must lie in \(0, 1\]"):
            selector().set_share(share)
    with pytest.raises(ValueError, match="prob=2 is a probability"):
        selector().set_share(0.5, 2)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="heuristic='beauty' must be one of 'contrast'"):
        selector(heuristic="beauty")
    with pytest.raises(ValueError, match="top_k=25, but there are only 24 patches"):
        selector(top_k=25)
    with pytest.raises(ValueError, match="top_k=0"):
        selector(top_k=0)
    with pytest.raises(ValueError, match="prob_schedule='cosine'"):
        selector(prob_schedule="cosine")


def test_patches_are_gathered_and_joined_again():
    pixels = torch.randn(2, 3, 8, 12)
    patches = gather_patches(pixels, 4)
    assert torch.equal(patches[1, 4], pixels[1, :, 4:, 4:8])
    assert torch.equal(join_patches(patches, (2, 3)), pixels)
    chosen = torch.tensor([[5, 0], [1, 3]])
    assert torch.equal(gather_patches(pixels, 4, chosen)[1], patches[1, [1, 3]])
    assert torch.equal(gather_patches(pixels, 4, chosen)[0, 0], pixels[0, :, 4:, 8:])
