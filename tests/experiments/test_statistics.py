import math
import warnings

import numpy as np
import pytest
from scipy import stats

from hf_efficient.experiments.statistics import (
    compare,
    compare_all,
    holm,
    median_interval,
    shapiro_wilk,
    summarize,
    verdict,
)

NOISE = [0.4, -1.1, 0.3, 1.2, -0.6, 0.1, -0.9, 0.8]
SKEWED = [1.0, 1.0, 1.1, 1.0, 1.2, 1.0, 9.0, 30.0]


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def sample(values) -> dict[int, float]:
    return dict(enumerate(values))


def test_normal_values_have_a_mean_with_students_interval():
    values = [100 + x for x in NOISE]
    summary = summarize(values)
    expected = stats.t.interval(0.95, 7, np.mean(values), stats.sem(values))
    assert summary.normal and summary.statistic == "mean" and summary.confidence == 0.95
    assert summary.centre == pytest.approx(np.mean(values)) and (summary.low, summary.high) == pytest.approx(expected)
    assert summary.shapiro == pytest.approx(stats.shapiro(values).pvalue)


def test_other_values_have_a_median_within_order_statistics():
    summary = summarize(SKEWED)
    assert summary.normal is False and summary.statistic == "median" and summary.shapiro < 0.05
    assert summary.centre == 1.05 and (summary.low, summary.high) == (1.0, 30.0)
    assert summary.confidence == pytest.approx(1 - 2 / 2**8)


@pytest.mark.parametrize("size", [3, 5, 6, 9, 17, 50])
def test_the_medians_interval_is_the_narrowest_that_suffices(size):
    low, high, confidence = median_interval(range(size))
    assert low == size - 1 - high
    assert confidence == pytest.approx(1 - 2 * stats.binom.cdf(low, size, 0.5))
    assert confidence >= 0.95 or low == 0
    assert 1 - 2 * stats.binom.cdf(low + 1, size, 0.5) < 0.95


def test_few_values_have_no_interval():
    summary = summarize([1.0, 2.0])
    assert (summary.size, summary.centre, summary.low, summary.normal, summary.shapiro) == (2, 1.5, None, None, None)


def test_equal_values_are_no_trouble():
    summary = summarize([5.0] * 4)
    assert (summary.centre, summary.low, summary.high) == (5, 5, 5) and shapiro_wilk([5.0] * 4) == 1


@pytest.mark.parametrize(("values", "message"), [([], "no values"), ([1.0, math.nan], "finite")])
def test_nonsense_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        summarize(values)


def test_a_saving_is_told():
    a = sample(100 + x for x in NOISE)
    pair = compare(a, sample(75 + 0.7 * x for x in NOISE[::-1]), ("full", "half"))
    logs = np.log([75 + 0.7 * x for x in NOISE[::-1]]) - np.log(list(a.values()))
    assert pair.test == "paired t" and pair.p == pytest.approx(stats.ttest_1samp(logs, 0).pvalue)
    assert pair.effect == pytest.approx(np.exp(logs.mean())) and pair.low < 0.75 < pair.high
    assert verdict(pair).startswith("saves 25.0 % [")


def test_no_saving_is_told_in_two_ways():
    a = sample(100 + x for x in NOISE)
    same = compare(a, sample(100 + x for x in NOISE[::-1]))
    assert verdict(same).startswith("no saving shown: +0.0 %") and "within the noise" in verdict(same)
    more = compare(a, sample(108 + x for x in NOISE[::-1]))
    assert verdict(more).startswith("no saving: takes 8.0 % more")


@pytest.mark.parametrize("size", [1, 2])
def test_too_few_repetitions_tell_nothing(size):
    pair = compare(sample([100.0] * size), sample([10.0] * size))
    assert pair.p is None and not pair.significant and pair.effect == pytest.approx(0.1)
    assert verdict(pair) == f"too few repetitions to tell: {size}, and at least 3 are needed"
    assert pair.low is None


def test_pairing_sees_what_seeds_hide():
    hard = [10.0, 40.0, 90.0, 160.0, 250.0]  # seeds differ far more than runs
    a, b = sample(hard), {seed: x * (0.9 + 0.002 * seed) for seed, x in enumerate(hard)}
    assert compare(a, b).significant
    assert not compare(a, {seed + 100: x for seed, x in b.items()}).significant


def test_a_rank_test_where_differences_are_not_normal():
    a = sample([100.0] * 8)
    pair = compare(a, sample(100.0 * x for x in SKEWED))
    assert pair.test == "Wilcoxon signed-rank" and pair.effect == pytest.approx(math.sqrt(1.0 * 1.1))
    few = compare(sample([100.0] * 5), sample([100.0, 100.1, 100.05, 100.1, 900.0]))
    assert verdict(few) == "too few repetitions to tell: with 5, Wilcoxon signed-rank can't go below p = 0.062"


def test_independent_samples():
    a, b = [100 + x for x in NOISE], [90 + x for x in NOISE]
    pair = compare(sample(a), {seed + 50: x for seed, x in enumerate(b)})
    expected = stats.ttest_ind(np.log(b), np.log(a), equal_var=False)
    assert pair.test == "Welch's t" and pair.p == pytest.approx(expected.pvalue)
    assert pair.low < pair.effect < pair.high < 1
    skewed = compare(sample(SKEWED), {seed + 50: 100 * x for seed, x in enumerate(SKEWED)})
    assert skewed.test == "Mann-Whitney U" and skewed.significant
    assert skewed.effect == pytest.approx(100) and skewed.low < 100 < skewed.high
    uneven = compare(sample(SKEWED), {50: 1.0, 51: 2.0})
    assert "too few repetitions to tell: 2" in verdict(uneven)


def test_values_that_never_vary():
    a = sample([100.0] * 3)
    assert verdict(compare(a, sample([80.0] * 3))).startswith("saves 20.0 % [20.0, 20.0]")
    assert verdict(compare(a, a)).startswith("no saving shown: +0.0 %")
    assert compare(a, {9: 80.0, 10: 80.0, 11: 80.0}).p == 0


def test_differences_of_scores():
    a, b = sample([80.0 + x for x in NOISE]), sample([79.5 + x for x in NOISE[::-1]])
    pair = compare(a, b, ratio=False)
    assert pair.effect == pytest.approx(-0.5) and pair.low < -0.5 < pair.high and not pair.significant
    assert compare(sample([0.0, 1.0, 2.0]), sample([-1.0, 0.0, 1.5]), ratio=False).effect < 0
    with pytest.raises(ValueError, match="above 0"):
        compare(sample([0.0, 1.0, 2.0]), a)


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0] and holm([]) == []


def test_many_comparisons_are_corrected():
    samples = {name: sample(level + x for x in NOISE) for name, level in (("a", 100), ("b", 100.9), ("c", 80))}
    samples["b"] = sample(samples["a"][seed] + 0.9 + (0.8 * (-1) ** seed) * (1 + seed / 10) for seed in range(8))
    pairs = compare_all(samples)
    assert [(pair.a, pair.b) for pair in pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(pair.adjusted >= pair.p for pair in pairs)
    assert [pair.adjusted for pair in pairs] == holm([pair.p for pair in pairs])
    few = compare_all({"a": sample([1.0]), "b": sample([2.0]), "c": sample([3.0])})
    assert [pair.adjusted for pair in few] == [None] * 3
