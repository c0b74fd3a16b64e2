"""Statistics of rewards: exact in their inputs, so that no order of rows and no engine changes a digit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moments:
    """Of a sample.

    Attributes:
        mean: None without values.
        variance: unbiased, with n - 1 in the denominator; None below two values.
    """

    count: int
    mean: float | None
    variance: float | None
    minimum: float | None
    maximum: float | None


def moments(histogram: Mapping[float, int]) -> Moments:
    """Of value → how often it occurs. Computed in whole multiples of the values' smallest binary digit, and rounded
    once; 1 and 1.0, or 0.0 and -0.0, give the same digits whichever of them came first."""
    count = sum(histogram.values())
    if not count:
        return Moments(0, None, None, None, None)
    ratios = [(*value.as_integer_ratio(), number) for value, number in histogram.items()]
    scale = max(denominator for _, denominator, _ in ratios)  # all of them are powers of two
    total = squares = 0
    for numerator, denominator, number in ratios:
        value = numerator * (scale // denominator)
        total += value * number
        squares += value * value * number
    variance = None
    if count > 1:
        variance = _quotient(squares * count - total * total, scale * scale * count * (count - 1))
    smallest, largest = float(min(histogram)) + 0.0, float(max(histogram)) + 0.0
    return Moments(count, _quotient(total, scale * count), variance, smallest, largest)


def _quotient(numerator: int, denominator: int) -> float:
    """Correctly rounded, as a quotient of integers is."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf


def upper_bound(deviations: int, draws: int, confidence: float) -> float:
    """One-sided upper confidence bound on a rate: the largest rate at which so few `deviations` in `draws` still have
    a chance of 1 - confidence (Clopper and Pearson, Biometrika 26, 1934). Without any deviation it is
    1 - (1 - confidence)^(1 / draws).

    Raises:
        ValueError: deviations are not within 0 and draws, or confidence is not between 0 and 1.
    """
    if not 0 <= deviations <= draws:
        raise ValueError(f"deviations = {deviations} must be within 0 and draws = {draws}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence} must be between 0 and 1")
    if deviations == draws:
        return 1.0
    if deviations == 0:
        return -math.expm1(math.log1p(-confidence) / draws)
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if chance_of_at_most(deviations, draws, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def chance_of_at_most(deviations: int, draws: int, rate: float) -> float:
    """P(X <= deviations) for X binomial(draws, rate), 0 < rate < 1.

    The terms are summed from the one nearest to the mean outwards, until they are too small to change the sum: about
    the square root of `draws` of them.
    """
    mode = min(deviations, int((draws + 1) * rate))
    odds = rate / (1 - rate)
    first = _chance_of(mode, draws, rate)
    terms = [first]
    term = first
    for k in range(mode, 0, -1):
        term *= k / ((draws - k + 1) * odds)
        terms.append(term)
        if term <= first * _NEGLIGIBLE:
            break
    term = first
    for k in range(mode, deviations):
        term *= (draws - k) * odds / (k + 1)
        terms.append(term)
        if term <= first * _NEGLIGIBLE:
            break
    return math.fsum(terms)


_NEGLIGIBLE = 1e-22


def _chance_of(k: int, draws: int, rate: float) -> float:
    """P(X = k) by Loader's saddle-point expansion ("Fast and Accurate Computation of Binomial Probabilities", 2000).
    The logarithms of factorials themselves are so large that their difference would lose half of the digits."""
    rest = draws - k
    if k == 0 or rest == 0:
        return math.exp(draws * (math.log(rate) if k else math.log1p(-rate)))
    logarithm = (
        _factorial_error(draws)
        - _factorial_error(k)
        - _factorial_error(rest)
        - _deviance(k, draws * rate)
        - _deviance(rest, draws * (1 - rate))
    )
    return math.exp(logarithm) * math.sqrt(draws / (2 * math.pi * k * rest))


def _factorial_error(n: int) -> float:
    """log n! less Stirling's formula for it, sqrt(2 pi n) (n / e)^n."""
    if n < 16:
        return math.lgamma(n + 1) - (n + 0.5) * math.log(n) + n - 0.5 * math.log(2 * math.pi)
    square = 1 / (n * n)
    return (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - square / 1188) * square) * square) * square) / n


def _deviance(count: int, expected: float) -> float:
    """count log(count / expected) + expected - count, also where the two are close and the plain formula cancels."""
    difference = count - expected
    total = count + expected
    if abs(difference) > 0.1 * total:
        return count * math.log(count / expected) - difference
    ratio = difference / total
    result, power = difference * ratio, 2 * count * ratio
    for odd in range(3, 100, 2):
        power *= ratio * ratio
        previous, result = result, result + power / odd
        if result == previous:
            break
    return result
