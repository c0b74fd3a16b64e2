"""Bands of pass rates, written as intervals."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

INTERVAL = re.compile(r"([(\[])\s*([0-9.]+)\s*,\s*([0-9.]+)\s*([)\]])")


class Band(NamedTuple):
    """An interval of pass rates; `closed` says of each end whether it belongs to it."""

    low: Fraction
    high: Fraction
    closed: tuple[bool, bool]

    @classmethod
    def parse(cls, text: str) -> Band:
        """The band that `(0, 1)` or `[0.25, 0.75)` writes; ValueError says what is wrong."""
        found = INTERVAL.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                f"{text!r} is no interval: write (0, 1) for all between, [0.25, 0.75] for both ends as well"
            )
        try:
            low, high = Fraction(found[2]), Fraction(found[3])
        except ValueError:
            raise ValueError(f"{text!r}: an end is no number") from None
        if not 0 <= low <= high <= 1:
            raise ValueError(f"{text!r}: the ends must be pass rates from 0 to 1, the lower one first")
        band = cls(low, high, (found[1] == "[", found[4] == "]"))
        if low == high and not all(band.closed):
            raise ValueError(f"{text!r} has nothing in it: write [{found[2]}, {found[3]}] for that pass rate alone")
        return band

    def takes(self, passed: int, scored: int) -> bool:
        """Whether the pass rate passed/scored is in the band; none is where nothing was scored."""
        if not scored:
            return False
        rate = Fraction(passed, scored)
        above = rate >= self.low if self.closed[0] else rate > self.low
        below = rate <= self.high if self.closed[1] else rate < self.high
        return above and below

    def __str__(self) -> str:
        brackets = "[" if self.closed[0] else "(", "]" if self.closed[1] else ")"
        return f"{brackets[0]}{float(self.low):g}, {float(self.high):g}{brackets[1]}"
