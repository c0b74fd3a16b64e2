"""The time left of a generation, from the tokens that were generated.

What ends first is short, and a generation ends with its longest responses. So neither the mean of what has ended says
how long the rest will be, nor does the rate at which trials end say when the last one does.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from reroll.generation.survival import Lengths, Survival

MEMORY = 4
"""Speed follows about so many ended trials for each one in flight."""
RECENT = 30.0
"""Seconds over which streams are counted, those of late most; about."""
GROUPS = 8
"""Trials in flight are looked at in so many groups of about one age."""
FASTEST = 1e9
"""Tokens a second that are believed; a clock that stands still shows any number."""


class TimeLeft:
    """Reads no clock: `now` is in seconds of any clock that does not go back.

    Args:
        max_tokens: most tokens that a trial may sample; what has more counts as so many.
        concurrency: trials in flight at a time.
    """

    def __init__(self, max_tokens: int, concurrency: int) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency = {concurrency}: give at least 1 trial in flight")
        self._lengths = Lengths(max_tokens)
        self._max_tokens = max_tokens
        self._concurrency = concurrency
        self._started: dict[Hashable, float] = {}
        self._tokens = 0.0
        self._seconds = 0.0
        self._last: float | None = None
        self._stream_seconds = 0.0
        self._counted_seconds = 0.0

    def started(self, trial_id: Hashable, now: float) -> None:
        self._count_streams(now)
        self._started[trial_id] = now

    def finished(self, trial_id: Hashable, tokens: int, now: float) -> None:
        """All tokens of a trial are sampled. One that was not started here, but by an earlier run, says how long trials
        are and nothing of the speed."""
        self._count_streams(now)
        self._lengths.add(tokens)
        began = self._started.pop(trial_id, None)
        if began is not None:
            kept = 1 - 1 / (MEMORY * self._concurrency + 1)
            self._tokens = self._tokens * kept + tokens
            self._seconds = self._seconds * kept + max(now - began, 0.0)

    def dropped(self, trial_id: Hashable) -> None:
        """A trial ended otherwise: its length is not known."""
        self._started.pop(trial_id, None)

    @property
    def speed(self) -> float | None:
        """Tokens a second of one trial in flight, over the last ones that ended; None before the first."""
        if self._tokens <= 0 or self._seconds <= 0:
            return None
        return min(self._tokens / self._seconds, FASTEST)

    @property
    def tokens_per_second(self) -> float:
        """Of all streams together, up to the last trial that was started or finished."""
        streams = self._stream_seconds / self._counted_seconds if self._counted_seconds else len(self._started)
        return (self.speed or 0.0) * streams

    def _count_streams(self, now: float) -> None:
        if self._last is not None:
            kept = math.exp(-max(now - self._last, 0.0) / RECENT)
            self._stream_seconds = self._stream_seconds * kept + len(self._started) * RECENT * (1 - kept)
            self._counted_seconds = self._counted_seconds * kept + RECENT * (1 - kept)
        self._last = now

    def estimate(self, waiting: int, now: float) -> float | None:
        """Seconds until all trials are done; None as long as nothing tells.

        With R the expected tokens that are still to be sampled, v the speed of one stream and C the streams, it is the
        largest of three:
        - R / (C v): the work, were all streams busy to the end;
        - the expected longest remaining of those in flight, divided by v: no second stream can help it;
        - where trials wait: the work until the last one starts, (R - C r) / (C v), and from then the expected longest
          rest of those that run then, divided by v. r is the mean rest of a trial that is met at any point of its way.

        Args:
            waiting: trials that are not started yet.
        """
        if not waiting and not self._started:
            return 0.0
        speed = self.speed
        if speed is None:
            return None
        groups = self._groups(now, speed)
        in_flight = [0] * len(self._lengths.counts)
        for tokens, number in groups:
            in_flight[self._lengths.place(tokens)] += number
        survival = Survival(self._lengths, in_flight)
        streams = max(self._concurrency, len(self._started))
        left = waiting * survival.mean + sum(survival.remaining(tokens) * number for tokens, number in groups)
        tokens_of_one = [left / streams, survival.longest_remaining(groups)]
        if waiting and survival.mean:
            until_last = max(left / streams - survival.mean_rest, 0.0)
            tokens_of_one.append(until_last + survival.longest_rest(min(waiting, streams)))
        return max(tokens_of_one) / speed

    def _groups(self, now: float, speed: float) -> list[tuple[float, int]]:
        """Tokens that trials in flight have at least, and how many have so many."""
        starts = sorted(self._started.values())
        size = math.ceil(len(starts) / GROUPS) or 1
        groups = []
        for first in range(0, len(starts), size):
            members = starts[first : first + size]
            tokens = max(now - sum(members) / len(members), 0.0) * speed
            groups.append((min(tokens, float(self._max_tokens)), len(members)))
        return groups
