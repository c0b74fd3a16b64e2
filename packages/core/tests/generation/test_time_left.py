"""The time left: the estimate of lengths on small cases, its bounds, and how it does beside the plain ratio."""

import heapq
import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.generation.survival import Lengths, Survival
from reroll.generation.time_left import TimeLeft


def survival(longest, ended, going_on=()):
    lengths = Lengths(longest)
    for tokens in ended:
        lengths.add(tokens)
    in_flight = [0] * len(lengths.counts)
    for tokens in going_on:
        in_flight[lengths.place(tokens)] += 1
    return Survival(lengths, in_flight)


def test_without_any_in_flight_it_is_the_mean():
    found = survival(8, [1, 2, 4])
    assert found.mean == pytest.approx(7 / 3)
    assert found.remaining(0) == pytest.approx(7 / 3)
    assert found.remaining(2) == pytest.approx(2)  # the one of four tokens is all that goes on
    assert found.remaining(4) == found.remaining(8) == 0


def test_those_in_flight_are_at_risk_for_as_long_as_they_have_been_seen():
    # S falls to 3/4 at one token, by a third of that at two, and to 0 at four, where one of one ends
    found = survival(8, [1, 2, 4], going_on=[2.5])
    assert found.mean == pytest.approx(1 + 3 / 4 + 1 / 2 + 1 / 2)
    assert found.remaining(1) == pytest.approx((3 / 4 + 1 / 2 + 1 / 2) / (3 / 4))


def test_what_is_older_than_all_that_ended_goes_on_by_the_tail_of_those():
    # one of two has ended at one token: with one point alone, S goes on to halve at each token
    found = survival(6, [1], going_on=[4])
    ends = [2.0**-t for t in range(1, 7)]
    assert found.mean == pytest.approx(1 + sum((left + right) / 2 for left, right in pairwise(ends)))
    assert survival(6, [1, 1, 1, 1]).mean == 1


def test_a_tail_is_as_heavy_as_what_was_seen():
    # S is 4/5, 3/5 and 2/5 from one, two and four tokens on; at two, -log S has come to half of what it is at four
    found = survival(10, [1, 2, 4], going_on=[9, 9])
    assert found._survival[:5] == pytest.approx([1, 4 / 5, 3 / 5, 3 / 5, 2 / 5])
    high, low = math.log(5 / 2), math.log(5 / 3)
    shape = math.log(high / low) / math.log(4 / 2)
    ends = [math.exp(-high * (t / 4) ** shape) for t in range(4, 11)]
    assert found.mean == pytest.approx(1 + 4 / 5 + 2 * 3 / 5 + sum((a + b) / 2 for a, b in pairwise(ends)))


def test_the_longest_of_several():
    two = survival(4, [1, 3])
    assert two.longest_remaining([(0.0, 1)]) == pytest.approx(two.mean, abs=0.5)
    # by trapezia: all have ended at 3 tokens, and before that with the square of what one has
    assert two.longest_remaining([(0.0, 2)]) == pytest.approx(two.longest_remaining([(0.0, 1), (0.0, 1)]))
    assert two.longest_remaining([(0.0, 50)]) == pytest.approx(2.5, abs=0.5)
    assert two.longest_remaining([]) == 0
    assert two.longest_rest(1) == pytest.approx(two.mean_rest)
    assert two.mean_rest < two.longest_rest(2) < two.longest_rest(9) < 4


def test_a_long_length_needs_few_bins_and_its_mean_is_kept():
    lengths = Lengths(128_000)
    assert len(lengths.counts) < 130 and lengths.edges[-1] == 128_000
    assert lengths.edges[:17] == list(range(17))
    ended = [3, 700, 12_345, 128_000, 999_999]
    assert survival(128_000, ended).mean == pytest.approx(sum(min(tokens, 128_000) for tokens in ended) / 5)


@given(st.lists(st.integers(0, 300), min_size=1), st.lists(st.floats(0, 300)), st.integers(1, 250))
def test_any_lengths_give_a_curve_that_falls(ended, going_on, longest):
    found = survival(longest, ended, going_on)
    curve = found._survival
    assert curve[0] == 1 and all(a >= b >= 0 for a, b in pairwise(curve))
    assert 0 <= found.mean <= longest
    for tokens in (0.0, 0.4, longest / 2, longest, longest * 2.0):
        assert 0 <= found.remaining(tokens) <= max(longest - tokens, 0) + 1e-9


def test_nothing_is_told_before_the_first_has_ended():
    left = TimeLeft(100, 2)
    assert left.estimate(0, 0.0) == 0.0 and left.estimate(5, 0.0) is None
    left.started("a", 0.0)
    assert left.estimate(5, 3.0) is None and left.tokens_per_second == 0
    left.finished("a", 10, 5.0)
    left.started("b", 5.0)
    left.started("c", 5.0)
    assert left.speed == 2.0 and left.tokens_per_second == pytest.approx(2.0)
    assert left.estimate(0, 5.0) == pytest.approx(5.0, rel=0.1)


def test_what_an_earlier_run_ended_tells_lengths_and_no_speed():
    left = TimeLeft(1000, 1)
    for trial in range(50):
        left.finished(("before", trial), 500, 0.0)
    assert left.speed is None and left.estimate(3, 0.0) is None
    left.started("now", 0.0)
    left.finished("now", 10, 1.0)
    assert left.estimate(10, 1.0) == pytest.approx(10 * 510 * 50 / 51 / 10, rel=0.1)


def test_what_is_dropped_counts_no_more():
    left = TimeLeft(100, 2)
    left.started("a", 0.0)
    left.finished("a", 10, 1.0)
    left.started("b", 1.0)
    left.dropped("b")
    left.dropped("nobody")
    assert left.estimate(0, 2.0) == 0.0


def test_tokens_a_second_are_those_of_the_streams_of_late():
    left = TimeLeft(1000, 8)
    for trial in range(8):
        left.started(trial, 0.0)
    left.finished(0, 100, 10.0)
    assert left.tokens_per_second == pytest.approx(80)
    for trial in range(1, 7):
        left.dropped(trial)
    left.started("later", 1000.0)  # for a long time there was one
    assert left.tokens_per_second == pytest.approx(10)


@pytest.mark.parametrize(("max_tokens", "concurrency"), [(0, 1), (1, 0)])
def test_sizes_that_nothing_has(max_tokens, concurrency):
    with pytest.raises(ValueError, match="= 0"):
        TimeLeft(max_tokens, concurrency)


STEPS = st.lists(st.tuples(st.sampled_from(["start", "finish", "drop", "wait"]), st.integers(0, 400)), max_size=60)


@given(STEPS, st.integers(1, 300), st.integers(1, 9))
def test_whatever_happens_the_estimate_is_sound_and_more_waiting_takes_longer(steps, max_tokens, concurrency):
    left, now, number = TimeLeft(max_tokens, concurrency), 0.0, 0
    in_flight = []
    for what, size in steps:
        now += size / 7 if what == "wait" else 0.0
        if what == "start":
            number += 1
            in_flight.append(number)
            left.started(number, now)
        elif what == "finish" and in_flight:
            left.finished(in_flight.pop(size % len(in_flight)), size, now)
        elif what == "drop" and in_flight:
            left.dropped(in_flight.pop(size % len(in_flight)))
        estimates = [left.estimate(waiting, now) for waiting in (0, 1, 2, 10, 1000, 100_000)]
        if left.speed is None:
            assert estimates[1:] == [None] * 5
            continue
        assert all(math.isfinite(estimate) and estimate >= 0 for estimate in estimates)
        assert all(a <= b * (1 + 1e-9) for a, b in pairwise(estimates))
    for trial in in_flight:
        left.finished(trial, 1, now)
    assert left.estimate(0, now) == 0.0


class Generation:
    """Trials whose lengths are drawn, each with a stream of the same speed, on a clock of its own."""

    speed = 40.0

    def __init__(self, seed, trials, concurrency, lengths, longest):
        draw = random.Random(seed)
        self.left, self.now = TimeLeft(longest, concurrency), 0.0
        self.waiting = [max(1, min(longest, int(lengths(draw)))) for _ in range(trials)]
        self.running = []
        self.seen = []
        for _ in range(concurrency):
            self.start()
        while self.running:
            self.now, trial, tokens = heapq.heappop(self.running)
            self.left.finished(trial, tokens, self.now)
            if self.waiting:
                self.start()
            done = trials - len(self.waiting) - len(self.running)
            if 10 * done >= trials and done % (trials // 100) == 0:
                plain = self.now / done * (trials - done)
                self.seen.append((self.now, self.left.estimate(len(self.waiting), self.now), plain))

    def start(self):
        tokens = self.waiting.pop()
        trial = len(self.waiting)
        self.left.started(trial, self.now)
        heapq.heappush(self.running, (self.now + tokens / self.speed, trial, tokens))

    def errors(self):
        """Mean absolute errors of the estimate, and of the ratio of trials, in seconds."""
        own = sum(abs(now + estimate - self.now) for now, estimate, _ in self.seen)
        plain = sum(abs(now + ratio - self.now) for now, _, ratio in self.seen)
        return own / len(self.seen), plain / len(self.seen)


LENGTHS = {
    "heavy tail": lambda draw: draw.lognormvariate(5.5, 1.2),
    "heavier tail": lambda draw: draw.lognormvariate(5.5, 1.5),
    "exponential": lambda draw: draw.expovariate(1 / 400),
    "close together": lambda draw: draw.lognormvariate(5.5, 0.3),
    "one in twenty to the end": lambda draw: draw.choices([draw.lognormvariate(5.5, 0.5), 1e9], [19, 1])[0],
}


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("trials", "concurrency", "longest"), [(2000, 64, 8192), (600, 200, 8192), (2000, 64, 2048)])
def test_it_errs_by_less_than_the_ratio_of_trials(lengths, trials, concurrency, longest):
    errors = [Generation(seed, trials, concurrency, LENGTHS[lengths], longest).errors() for seed in range(3)]
    own, plain = (sum(column) for column in zip(*errors, strict=True))
    assert own < plain * (0.6 if trials == 2000 else 0.95)


def test_all_of_it_is_as_small_after_many_trials():
    small, large = (Generation(0, trials, 8, LENGTHS["heavy tail"], 8192).left for trials in (200, 2000))
    assert not large._started and len(small._lengths.counts) == len(large._lengths.counts)
