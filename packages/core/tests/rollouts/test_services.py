"""Verifiers of services: what is asked again, when, and what becomes of the rest."""

import asyncio
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reroll.api import (
    JudgeError,
    Node,
    PluginError,
    ScorerClosed,
    ServiceConfig,
    ServiceError,
    ServiceUnavailable,
    ServiceVerifier,
    Task,
    Trace,
    Verdict,
    http_failure,
    services,
)
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.rollouts.scoring.scorer import Scorer, SelectedVerifier

TASK = Task("", {"scripted": "x"}, "test", 0, "0")
TRACE = Trace("t", TASK, [Node(None, {"role": "assistant", "content": "x"}, True, [1], [True])])


class Scripted(ServiceVerifier):
    """Does what stands in its script, one entry an attempt; the last one repeats."""

    name = "scripted"

    def __init__(self, *script, **options):
        super().__init__(ServiceConfig(**options))
        self.script = script
        self.asked = 0
        self.closed = 0

    async def ask(self, task, trace):
        step = self.script[min(self.asked, len(self.script) - 1)]
        self.asked += 1
        if step == "hang":
            await asyncio.sleep(600)
        if isinstance(step, BaseException):
            raise step
        return step

    async def close(self):
        self.closed += 1


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(services, "FIRST_WAIT", 0.001)


def judged(verifier):
    async def main():
        async with Scorer({"scripted": SelectedVerifier(verifier, "reroll-cases")}, ScoringConfig(workers=1)) as scorer:
            return (await scorer.score(TASK, TRACE))["scripted"]

    return asyncio.run(main())


PASSING = [ServiceUnavailable("busy"), ConnectionResetError("gone"), TimeoutError(), http_failure("it", 503)]


@pytest.mark.parametrize("failure", PASSING, ids=lambda failure: type(failure).__name__)
def test_what_may_pass_is_asked_again(failure):
    verifier = Scripted(failure, failure, Verdict(0.5), retries=2)
    assert judged(verifier).score == 0.5
    assert (verifier.asked, verifier.closed) == (3, 1)


def test_attempts_that_hang_are_given_up_and_made_again():
    verifier = Scripted("hang", Verdict(1.0), timeout_seconds=0.05)
    assert judged(verifier).score == 1.0 and verifier.asked == 2


def test_retries_end():
    verifier = Scripted(ServiceUnavailable("busy"), retries=3)
    assert judged(verifier) == Verdict(None, state="service_error", detail="busy (4 attempts)")
    assert judged(Scripted("hang", retries=0, timeout_seconds=0.05)).detail == "no answer within 0.05 s (1 attempt)"


def test_what_stays_is_asked_once():
    for failure, state in [(ServiceError("no key"), "service_error"), (JudgeError("no verdict"), "judge_error")]:
        verifier = Scripted(failure, Verdict(1.0))
        assert judged(verifier) == Verdict(None, state=state, detail=str(failure))
        assert verifier.asked == 1
    verifier = Scripted(KeyError("a fault of its own"))
    assert judged(verifier).state == "service_error" and verifier.asked == 1


def test_no_attempt_is_made_that_would_come_too_late():
    verifier = Scripted(ServiceUnavailable("busy", retry_after=60.0), deadline_seconds=5.0)
    assert judged(verifier).detail == "busy (1 attempt, the next one would be past the deadline of 5 s)"


def test_a_service_that_hangs_until_the_deadline_is_told_with_its_words_and_attempts():
    late = "the next one would be past the deadline of 0.5 s"
    found = judged(Scripted("hang", deadline_seconds=0.5))
    assert found.state == "service_error"
    assert re.fullmatch(rf"no answer within 0\.\d+ s \(1 attempt, {late}\)", found.detail)
    verifier = Scripted("hang", timeout_seconds=0.3, deadline_seconds=0.5)
    assert re.fullmatch(rf"no answer within 0\.\d+ s \(2 attempts, {late}\)", judged(verifier).detail)
    found = judged(Scripted(http_failure("the sandbox", 503, "busy"), "hang", deadline_seconds=0.5))
    before = "before that: the sandbox answers 503: busy"
    assert re.fullmatch(rf"no answer within 0\.\d+ s; {before} \(2 attempts, {late}\)", found.detail)


def test_a_call_that_does_not_let_itself_be_ended_meets_the_deadline():
    class Stubborn(Scripted):
        async def ask(self, task, trace):
            while True:
                try:
                    return await super().ask(task, trace)
                except asyncio.CancelledError:
                    self.asked += 1
                    if self.asked > 2:
                        raise

    found = judged(Stubborn("hang", deadline_seconds=0.2))
    assert (found.state, found.detail) == ("timeout", "over the deadline of 0.2 s")


def test_concurrency_is_an_option():
    class Counted(Scripted):
        now = most = 0

        async def ask(self, task, trace):
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.001)
            self.now -= 1
            return Verdict(1.0)

    async def main(verifier):
        async with Scorer({"scripted": SelectedVerifier(verifier, "reroll-cases")}) as scorer:
            await scorer.score_group(TASK, [TRACE] * 30)
        return verifier.most

    assert [asyncio.run(main(Counted(concurrency=count))) for count in (1, 7)] == [1, 7]
    with pytest.raises(ValidationError, match="concurrency"):
        Scripted(concurrency=0)


def test_a_concurrency_that_lets_nothing_through_is_refused():
    verifier = Scripted(Verdict(1.0))
    verifier.concurrency = 0
    with pytest.raises(PluginError, match=r"'scripted' of reroll-cases has the concurrency 0 \(int\)"):
        Scorer({"scripted": SelectedVerifier(verifier, "reroll-cases")})


@pytest.mark.parametrize("value", [0, -1.0, True, "60", float("inf"), float("nan")])
def test_a_deadline_that_is_none_is_refused(value):
    verifier = Scripted(Verdict(1.0))
    verifier.deadline_seconds = value
    with pytest.raises(PluginError) as caught:
        Scorer({"scripted": SelectedVerifier(verifier, "reroll-cases")})
    assert str(caught.value) == (
        f"verifier 'scripted' of reroll-cases has deadline_seconds = {value!r} ({type(value).__name__}); "
        "it must be a number of seconds above 0, or None for rollout.scoring.deadline_seconds"
    )


def test_a_service_verifier_without_a_coroutine_to_ask_is_refused():
    class Mute(ServiceVerifier):
        name = "mute"

    class Plain(ServiceVerifier):
        name = "plain"

        def ask(self, task, trace):
            return Verdict(1.0)

    for cls, words in [
        (Mute, r"'mute' of reroll-cases has no `ask`: .*Mute must have `async def ask\(self, task, trace\)`"),
        (Plain, r"'plain' of reroll-cases has a plain `ask`: .*Plain must declare it as `async def ask`"),
    ]:
        with pytest.raises(PluginError, match=words):
            Scorer({cls.name: SelectedVerifier(cls(), "reroll-cases")})


def test_a_service_verifier_with_a_score_of_its_own_needs_no_ask():
    class Own(ServiceVerifier):
        name = "scripted"

        async def score(self, task, trace):
            return Verdict(0.5)

    assert judged(Own()).score == 0.5


def test_closing_ends_calls_and_hides_no_failure_to_close():
    class Stuck(Scripted):
        async def close(self):
            raise OSError("the connection is gone")

    warned = []

    async def main():
        verifier = Stuck("hang")
        scorer = Scorer({"scripted": SelectedVerifier(verifier, "reroll-cases")}, warn=warned.append)
        waiting = asyncio.ensure_future(scorer.score(TASK, TRACE))
        while not verifier.asked:
            await asyncio.sleep(0)
        await scorer.close()
        await scorer.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(ScorerClosed, match="the scorer is closed; make another one"):
            await scorer.score(TASK, TRACE)

    asyncio.run(main())
    assert warned == [
        "verifier 'scripted' of reroll-cases could not be closed: OSError: the connection is gone",
    ]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_statuses_that_may_pass(status):
    failure = http_failure("the judge", status, '{"error": {"message": "too\\nbusy"}}', "7")
    assert isinstance(failure, ServiceUnavailable) and failure.retry_after == 7.0
    assert str(failure) == f"the judge answers {status}: too busy"


@pytest.mark.parametrize(
    ("status", "remedy"), [(400, "options"), (401, "the key"), (403, "the key"), (404, "the URL, and that")]
)
def test_statuses_that_stay_name_the_remedy(status, remedy):
    failure = http_failure("the judge", status, "no", "7")
    assert not isinstance(failure, ServiceUnavailable)
    assert str(failure).startswith(f"the judge answers {status}: no; check") and remedy in str(failure)


def test_a_caller_that_knows_better_names_the_remedy():
    assert str(http_failure("the judge", 404, remedy="check the model")) == "the judge answers 404; check the model"


def test_the_words_of_services_are_found():
    for text in ('{"error": {"message": "no"}}', '{"error": "no"}', '{"detail": "no"}', '{"message": "no"}', " no\n"):
        assert services.service_words(text) == "no"
    assert services.service_words("[" * 100_000).startswith("[[") and len(services.service_words("x" * 999)) < 400


@given(st.text(max_size=300))
def test_any_body_is_one_short_line(text):
    words = services.service_words(text)
    assert "\n" not in words and len(words) <= services.REASON_LENGTH + 1


@given(st.integers(1, 80), st.one_of(st.none(), st.floats(0, 1e6)))
def test_waits_grow_and_are_never_shorter_than_asked(attempt, retry_after):
    wait = services.wait_seconds(attempt, retry_after)
    assert 0 < wait <= max(services.LONGEST_WAIT, 1.1 * (retry_after or 0.0))
    assert wait >= (retry_after or 0.0)


def test_waits_double_and_hold_chance(monkeypatch):
    monkeypatch.setattr(services, "FIRST_WAIT", 0.5)
    waits = [[services.wait_seconds(attempt) for _ in range(50)] for attempt in (1, 2, 3)]
    for found, longest in zip(waits, (0.5, 1.0, 2.0), strict=True):
        assert all(longest / 2 <= wait <= longest for wait in found) and len(set(found)) > 10


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("12", 12.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after(header, seconds):
    assert services.retry_after_seconds(header, now=100.0) == seconds


@given(st.text())
def test_any_retry_after_is_seconds_or_nothing(header):
    found = services.retry_after_seconds(header)
    assert found is None or 0.0 <= found < float("inf")


def test_a_date_counts_from_now():
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 3600))
    assert services.retry_after_seconds(date) == pytest.approx(3600, abs=60)
