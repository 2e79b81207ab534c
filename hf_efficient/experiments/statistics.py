"""Statistics of repeated measurements: what can be concluded. Pure functions; scipy is imported when one is called.

One sample: Shapiro-Wilk at 0.05 (HuggingGreen, section V.A). If it does not reject normality, the mean with Student's
interval; if it does, the median with the interval of order statistics, which assumes nothing.

Two samples: paired by seed where both have the same, else independent. The effect is a ratio b/a (of energies, tested
as differences of logarithms) or a difference b − a (of scores). If the differences (paired) or both samples look
normal: Student's paired or Welch's test; else Wilcoxon's or Mann and Whitney's. Holm corrects for many comparisons.

Three repetitions are the least; below, and where the test at hand can't reach 0.05 with so few, nothing is claimed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

SIGNIFICANCE = 0.05
CONFIDENCE = 0.95
FEWEST = 3


@dataclass(frozen=True)
class Summary:
    """Of one sample.

    Args:
        size: how many values.
        shapiro: p of the Shapiro-Wilk test; None where there are fewer than three values.
        normal: whether it did not reject normality; None if it could not be asked.
        centre: the mean if normal (or nobody knows), else the median.
        low, high: its confidence interval; None with fewer than three values.
        confidence: of that interval.
    """

    size: int
    shapiro: float | None
    normal: bool | None
    centre: float
    low: float | None
    high: float | None
    confidence: float | None

    @property
    def statistic(self) -> str:
        return "median" if self.normal is False else "mean"


@dataclass(frozen=True)
class Comparison:
    """Of b with a.

    Args:
        a, b: names of the samples.
        effect: b/a or b − a, with its interval `low` to `high`; None with too few values.
        test: name of the test.
        p: of no difference; None where nothing can be said.
        adjusted: p after Holm's correction.
        reason: why nothing can be said.
    """

    a: str
    b: str
    effect: float | None
    low: float | None
    high: float | None
    test: str
    p: float | None
    adjusted: float | None = None
    reason: str = ""

    @property
    def significant(self) -> bool:
        p = self.p if self.adjusted is None else self.adjusted
        return p is not None and p < SIGNIFICANCE


def shapiro_wilk(values: Sequence[float]) -> float | None:
    """p of the hypothesis that the values are normal; equal values are no evidence against it."""
    if len(values) < FEWEST:
        return None
    if _is_constant(values):
        return 1.0
    from scipy import stats

    return float(stats.shapiro(values).pvalue)


def summarize(values: Sequence[float]) -> Summary:
    _check(values)
    p = shapiro_wilk(values)
    if p is None:
        return Summary(len(values), None, None, _mean(values), None, None, None)
    if p >= SIGNIFICANCE:
        return Summary(len(values), p, True, _mean(values), *_mean_interval(values), CONFIDENCE)
    return Summary(len(values), p, False, _median(values), *median_interval(values))


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Two order statistics around the median, and the confidence that they have: P(k < Binomial(n, ½) ≤ n − k).

    The narrowest with at least 0.95; with fewer than six values the whole range, which has less.
    """
    from scipy import stats

    ordered, size = sorted(values), len(values)
    outside = max(0, int(stats.binom.ppf((1 - CONFIDENCE) / 2, size, 0.5)) - 1)  # values cut off at each end
    while 2 * stats.binom.cdf(outside + 1, size, 0.5) <= 1 - CONFIDENCE:
        outside += 1
    confidence = 1 - 2 * stats.binom.cdf(outside, size, 0.5)
    return ordered[outside], ordered[size - 1 - outside], float(confidence)


def compare(
    a: Mapping[int, float], b: Mapping[int, float], names: tuple[str, str] = ("a", "b"), ratio: bool = True
) -> Comparison:
    """How b differs from a, each seed -> value.

    Args:
        ratio: whether the effect is b/a (positive values only) rather than b − a.
    """
    for values in (a, b):
        _check(list(values.values()))
    if ratio and min(*a.values(), *b.values()) <= 0:
        raise ValueError(f"the ratio of {names[1]} to {names[0]} needs values above 0.")
    seeds = sorted(a.keys() & b.keys())
    if len(seeds) == len(a) == len(b):
        result = _compare_paired([a[seed] for seed in seeds], [b[seed] for seed in seeds], ratio)
    else:
        result = _compare_independent(list(a.values()), list(b.values()), ratio)
    return replace(result, a=names[0], b=names[1])


def _compare_paired(a: list[float], b: list[float], ratio: bool) -> Comparison:
    size = len(a)
    differences = [_scale(y, ratio) - _scale(x, ratio) for x, y in zip(a, b, strict=True)]
    if size < FEWEST:
        return _too_few(_unscale(_mean(differences), ratio), size)
    from scipy import stats

    if shapiro_wilk(differences) >= SIGNIFICANCE:
        effect, interval, test = _mean(differences), _mean_interval(differences), "paired t"
        p = _p_of_constant(effect) if _is_constant(differences) else stats.ttest_1samp(differences, 0).pvalue
    else:
        effect, interval, test = _median(differences), median_interval(differences)[:2], "Wilcoxon signed-rank"
        p = stats.wilcoxon(differences).pvalue
        if 2 / 2**size >= SIGNIFICANCE:
            return _too_few(_unscale(effect, ratio), size, test, 2 / 2**size)
    low, high = (_unscale(end, ratio) for end in interval)
    return Comparison("", "", _unscale(effect, ratio), low, high, test, float(p))


def _compare_independent(a: list[float], b: list[float], ratio: bool) -> Comparison:
    x, y = ([_scale(value, ratio) for value in values] for values in (a, b))
    size = min(len(x), len(y))
    if size < FEWEST:
        return _too_few(_unscale(_mean(y) - _mean(x), ratio), size)
    from scipy import stats

    if min(shapiro_wilk(x), shapiro_wilk(y)) >= SIGNIFICANCE:
        effect, test = _mean(y) - _mean(x), "Welch's t"
        if _is_constant(x) and _is_constant(y):
            interval, p = (effect, effect), _p_of_constant(effect)
        else:
            result = stats.ttest_ind(y, x, equal_var=False)
            interval, p = tuple(result.confidence_interval(CONFIDENCE)), result.pvalue
    else:
        effect, test = _median(y) - _median(x), "Mann-Whitney U"
        interval, p = _shift_interval(x, y), stats.mannwhitneyu(y, x).pvalue
        least = 2 / math.comb(len(x) + len(y), len(x))
        if least >= SIGNIFICANCE:
            return _too_few(_unscale(effect, ratio), size, test, least)
    low, high = (_unscale(float(end), ratio) for end in interval)
    return Comparison("", "", _unscale(effect, ratio), low, high, test, float(p))


def _shift_interval(x: list[float], y: list[float]) -> tuple[float, float]:
    """Of the difference of medians, by the percentile bootstrap with a fixed seed."""
    import numpy as np

    random = np.random.default_rng(0)
    medians = [np.median(random.choice(values, (10_000, len(values))), axis=1) for values in (x, y)]
    tail = (1 - CONFIDENCE) / 2
    return tuple(np.quantile(medians[1] - medians[0], [tail, 1 - tail]).tolist())


def compare_all(samples: Mapping[str, Mapping[int, float]], ratio: bool = True) -> list[Comparison]:
    """Every pair, in order, with Holm's correction over all of them."""
    pairs = [compare(samples[a], samples[b], (a, b), ratio) for a, b in combinations(samples, 2)]
    told = [pair for pair in pairs if pair.p is not None]
    adjusted = iter(holm([pair.p for pair in told]))
    return [pair if pair.p is None else replace(pair, adjusted=next(adjusted)) for pair in pairs]


def holm(ps: Sequence[float]) -> list[float]:
    """The p values after Holm's step-down correction."""
    adjusted, worst = [0.0] * len(ps), 0.0
    for place, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        worst = max(worst, min(1.0, (len(ps) - place) * ps[index]))
        adjusted[index] = worst
    return adjusted


def verdict(comparison: Comparison) -> str:
    """A comparison of energies in plain words: saved, or not, or unknown."""
    if comparison.p is None:
        return comparison.reason
    p = comparison.p if comparison.adjusted is None else comparison.adjusted
    change, low, high = (100 * (value - 1) for value in (comparison.effect, comparison.low, comparison.high))
    if not comparison.significant:
        return f"no saving shown: {change:+.1f} % [{low:+.1f}, {high:+.1f}] is within the noise (p = {p:.2g})"
    if change < 0:
        return f"saves {-change:.1f} % [{-high:.1f}, {-low:.1f}] (p = {p:.2g})"
    return f"no saving: takes {change:.1f} % more [{low:.1f}, {high:.1f}] (p = {p:.2g})"


def _too_few(effect: float, size: int, test: str = "none", least: float | None = None) -> Comparison:
    reason = f"too few repetitions to tell: {size}, and at least {FEWEST} are needed"
    if least is not None:
        reason = f"too few repetitions to tell: with {size}, {test} can't go below p = {least:.2g}"
    return Comparison("", "", effect, None, None, test, None, reason=reason)


def _check(values: Sequence[float]) -> None:
    if not values:
        raise ValueError("there are no values to summarize.")
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"values must be finite numbers: {list(values)}.")


def _mean_interval(values: Sequence[float]) -> tuple[float, float]:
    from scipy import stats

    size, mean = len(values), _mean(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (size - 1))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, size - 1)) * deviation / math.sqrt(size)
    return mean - half, mean + half


def _is_constant(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= 1e-12 * max(abs(value) for value in values)


def _p_of_constant(effect: float) -> float:
    """Without variation, any difference is significant."""
    return 1.0 if abs(effect) < 1e-12 else 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _median(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _scale(value: float, ratio: bool) -> float:
    return math.log(value) if ratio else value


def _unscale(value: float, ratio: bool) -> float:
    return math.exp(value) if ratio else value
