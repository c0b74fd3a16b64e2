"""How long responses are, from those that have ended and those that have not: the Kaplan-Meier estimate."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

EXACT = 16
"""Lengths up to here have bins of their own."""
GROWTH = 1.15
"""From one bin's end to the next, above; what lies within a bin is told apart by its mean alone."""
SHAPES = 0.25, 4.0
"""Bounds of the shape of a tail, which is told by few responses at the beginning."""
STEPS = 20
"""Lengths at which an integral with a costly integrand is taken, about."""
NEVER = 1e-9
"""A probability that is not looked into."""


class Lengths:
    """A histogram of lengths in tokens, with a number of bins that follows from the longest alone.

    Attributes:
        edges: bin `i` holds lengths above `edges[i]`, up to `edges[i + 1]`; the last one holds what is longer, too.
    """

    def __init__(self, longest: int) -> None:
        if longest < 1:
            raise ValueError(f"longest = {longest} is no length; give at least 1")
        self.edges = [float(edge) for edge in range(min(EXACT, longest) + 1)]
        while self.edges[-1] < longest:
            self.edges.append(min(float(longest), math.floor(self.edges[-1] * GROWTH)))
        self.counts = [0] * (len(self.edges) - 1)
        self.sums = [0.0] * (len(self.edges) - 1)

    def add(self, tokens: int) -> None:
        place = self.place(tokens)
        self.counts[place] += 1
        self.sums[place] += min(float(tokens), self.edges[-1])

    def place(self, tokens: float) -> int:
        """The bin of a length."""
        return min(max(bisect_left(self.edges, tokens) - 1, 0), len(self.counts) - 1)


class Survival:
    """S(t): the probability that a response has more than t tokens.

    The product-limit estimate of Kaplan and Meier (1958, "Nonparametric estimation from incomplete observations",
    Journal of the American Statistical Association 53): at each length at which responses end, d of the n that were
    still going on, S falls by the factor 1 - d/n. Those in flight count among the n for as long as they have been
    seen. Ended ones alone would be the short ones.

    Where the longest are still in flight, S ends above 0. From there it falls as a Weibull curve, see `_tail`; it is
    one of the completions that Moeschberger and Klein compare (1985, "A comparison of several methods of estimating
    the survival function when there is extreme right censoring", Biometrics 41). All ends at the longest possible.

    Args:
        lengths: of ended responses, at least one.
        in_flight: number of responses in flight by bin, after the tokens that each has at least.
    """

    def __init__(self, lengths: Lengths, in_flight: Sequence[int]) -> None:
        edges, counts = lengths.edges, lengths.counts
        self._edges = edges
        last = max(place for place, count in enumerate(counts) if count)
        at_risk = list(accumulate(map(sum, zip(reversed(counts), reversed(in_flight), strict=True))))[::-1]
        survival, areas = [1.0], list[float]()
        for place in range(last + 1):
            before, left, right = survival[-1], edges[place], edges[place + 1]
            after, area = before, before * (right - left)
            if count := counts[place]:
                after = before * (1 - count / at_risk[place])
                area = after * (right - left) + (before - after) * (lengths.sums[place] / count - left)
            survival.append(after)
            areas.append(area)
        hazard, shape = _tail(edges, survival)
        for place in range(last + 1, len(counts)):
            left, right = edges[place], edges[place + 1]
            after = math.exp(-hazard * (right / edges[last + 1]) ** shape)
            areas.append((survival[-1] + after) / 2 * (right - left))
            survival.append(after)
        self._survival = survival
        self._areas = areas
        self._beyond = [*accumulate(reversed(areas), initial=0.0)][::-1]
        """Integral of S from each edge on."""

    @property
    def mean(self) -> float:
        """Expected tokens of a response."""
        return self._beyond[0]

    def _at(self, tokens: float) -> float:
        """S, which is taken as straight within a bin."""
        edges = self._edges
        if tokens >= edges[-1]:
            return 0.0
        place = bisect_right(edges, tokens) - 1
        before, after = self._survival[place], self._survival[place + 1]
        return before + (after - before) * (tokens - edges[place]) / (edges[place + 1] - edges[place])

    def remaining(self, tokens: float) -> float:
        """Expected further tokens of a response that has so many and goes on."""
        edges, still = self._edges, self._at(tokens)
        if still <= 0:
            return 0.0
        place = bisect_right(edges, tokens) - 1
        part = (edges[place + 1] - tokens) / (edges[place + 1] - edges[place])
        return min((self._beyond[place + 1] + self._areas[place] * part) / still, edges[-1] - tokens)

    def longest_remaining(self, groups: Sequence[tuple[float, int]]) -> float:
        """Expected further tokens of the one that ends last: the integral of 1 - P(all have ended).

        Args:
            groups: tokens that responses in flight have, and how many of them have so many.
        """
        further = [*self._edges[: -1 : max(1, len(self._edges) // STEPS)], self._edges[-1]]
        all_ended = [1.0] * len(further)
        for tokens, number in groups:
            if (still := self._at(tokens)) > 0:
                for step, more in enumerate(further):
                    going_on = self._at(tokens + more) / still
                    if going_on < NEVER:
                        break
                    all_ended[step] *= max(1 - going_on, 0.0) ** number
        return _integral(further, [1 - probability for probability in all_ended])

    def longest_rest(self, number: int) -> float:
        """The same, of that many responses that are met at any point of their way, as those are that run when the last
        one is started: what is left of such a one is more than t with the probability (integral of S from t on) / mean,
        as in a renewal process."""
        values = [1 - (1 - min(beyond / self.mean, 1.0)) ** number for beyond in self._beyond]
        return _integral(self._edges, values)

    @property
    def mean_rest(self) -> float:
        """Expected further tokens of one that is met at any point of its way."""
        return _integral(self._edges, [beyond / self.mean for beyond in self._beyond])


def _tail(edges: Sequence[float], survival: Sequence[float]) -> tuple[float, float]:
    """H and k of a tail in which -log S = H (t / end) ** k, end being the last length at which S falls. It meets S
    there, and where -log S comes to half of H: on a plot of log(-log S) over log t, in which a Weibull curve is
    straight, it is the line through both. With one point alone, k is 1."""
    if survival[-1] <= 0:
        return math.inf, 1.0
    end = len(survival) - 1
    hazards = [-math.log(value) for value in survival]
    half = next(place for place, hazard in enumerate(hazards) if hazard >= hazards[-1] / 2)
    if half == end:
        return hazards[-1], 1.0
    shape = math.log(hazards[-1] / hazards[half]) / math.log(edges[end] / edges[half])
    return hazards[-1], min(max(shape, SHAPES[0]), SHAPES[1])


def _integral(places: Sequence[float], values: Sequence[float]) -> float:
    """By trapezia."""
    pairs = zip(pairwise(places), pairwise(values), strict=True)
    return sum((right - left) * (low + high) / 2 for (left, right), (low, high) in pairs)
