"""Means that are updated one reward at a time, and whether two of them differ by more than chance. The standard library
alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

ERAS = 8
"""Spans of weight versions that a prompt's rewards are kept apart by, within a run."""


@dataclass(slots=True)
class Tally:
    """Count, sum and sum of squared differences from the mean, updated one value at a time (Welford, Technometrics 4,
    1962) and merged (Chan, Golub and LeVeque, 1979)."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        """From the sum, so that equal shares of rewards 0 and 1 are equal numbers; 0 without values."""
        return self.total / self.count if self.count else 0.0

    def add(self, value: float) -> None:
        difference = value - self.mean if self.count else 0.0
        self.count += 1
        self.total += value
        self.squares += difference * (value - self.mean)

    def __add__(self, other: Tally) -> Tally:
        if not self.count or not other.count:
            found = other if other.count else self
            return Tally(found.count, found.total, found.squares)
        count = self.count + other.count
        difference = other.mean - self.mean
        return Tally(
            count,
            self.total + other.total,
            self.squares + other.squares + difference * difference * self.count * other.count / count,
        )

    @property
    def standard_error(self) -> float | None:
        """Of the mean; None below two values."""
        return math.sqrt(self.squares / (self.count - 1) / self.count) if self.count > 1 else None


@dataclass(slots=True)
class Eras:
    """A prompt's rewards in one run, by spans of weight versions that double when more than `ERAS` would be needed."""

    span: int = 1
    tallies: dict[int, Tally] = field(default_factory=dict)

    def add(self, version: int, reward: float) -> None:
        era = version // self.span
        tally = self.tallies.get(era)
        if tally is None:
            tally = self.tallies[era] = Tally()
        tally.add(reward)
        while len(self.tallies) > ERAS:
            self.span *= 2
            merged: dict[int, Tally] = {}
            for old, found in self.tallies.items():
                merged[old // 2] = merged.get(old // 2, Tally()) + found
            self.tallies = merged

    @property
    def whole(self) -> Tally:
        return sum((self.tallies[era] for era in sorted(self.tallies)), Tally())

    def halves(self) -> tuple[Tally, Tally]:
        """Early and late ones, parted where the two are nearest in number: that looks at no reward."""
        ordered = [self.tallies[era] for era in sorted(self.tallies)]
        cuts = range(1, len(ordered) + 1)
        parted = [(sum(ordered[:cut], Tally()), sum(ordered[cut:], Tally())) for cut in cuts]
        return min(parted, key=lambda pair: abs(pair[0].count - pair[1].count))


def standard_error_of_change(before: Tally, after: Tally, lowest: float, highest: float) -> float:
    """Of the difference of two means.

    To either side one value is added at the lowest and one at the highest that the prompt's rewards take: few equal
    ones do not mean that no other is possible. For rewards of 0 and 1 that is the interval of Agresti and Caffo, The
    American Statistician 54, 2000.
    """
    ends = Tally()
    ends.add(lowest)
    ends.add(highest)
    before, after = before + ends, after + ends
    return math.sqrt(before.squares / before.count**2 + after.squares / after.count**2)


def chance_of_change(before: Tally, after: Tally, lowest: float, highest: float) -> float:
    """Chance of a difference of two means as large as this, in either direction, when both sides are draws of one
    policy.

    For rewards of two values that is Fisher's exact test (Journal of the Royal Statistical Society 85, 1922), which
    holds for the few and unequal numbers that there are, where normal approximations cry wolf. Rewards in between
    count as their share of the way, rounded to the side of no change. That they spread less than two values of the same
    mean (Hoeffding, Journal of the American Statistical Association 58, 1963) speaks for a chance that is smaller
    still; for the rounded test it is not proven, and known from simulations only, in which it was conservative.
    """
    if highest <= lowest:
        return 1.0
    first, second = (
        tally.count * min(max((tally.mean - lowest) / (highest - lowest), 0.0), 1.0) for tally in (before, after)
    )
    if first * after.count > second * before.count:
        first, second, before, after = second, first, after, before
    low, high = math.ceil(first - 1e-6), math.floor(second + 1e-6)
    if low * after.count >= high * before.count:
        return 1.0
    return min(1.0, 2 * _chance_of_at_least(high, after.count, low + high, before.count + after.count))


def _chance_of_at_least(found: int, draws: int, marked: int, total: int) -> float:
    """P(X >= found) for X of `draws` without replacement from `total`, `marked` of them, being marked; `found` is
    above the mean."""
    rest = total - marked
    term = math.exp(_log_choices(marked, found) + _log_choices(rest, draws - found) - _log_choices(total, draws))
    terms = [term]
    for k in range(found, min(draws, marked)):
        term *= (marked - k) * (draws - k) / ((k + 1) * (rest - draws + k + 1))
        terms.append(term)
        if term <= terms[0] * 1e-17:
            break
    return math.fsum(terms)


def _log_choices(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
