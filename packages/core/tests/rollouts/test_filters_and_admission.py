"""What decides about prompts and groups, the gate before the engines, and the seeds of responses."""

import asyncio
import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import Decision, Group, GroupFilter, PluginError, PromptFilter, RenderedPrompt, Task, TaskSet, Trace
from reroll.rollouts.admission import GroupAdmission
from reroll.rollouts.filters import PassRate, ZeroVariance, decide
from reroll.rollouts.seeds import response_seed
from reroll.tasks.cursor import Cursor


def group(*rewards):
    task = Task("q", {"v": "1"}, "set", 0, "0")
    return Group(
        observation_id="observation",
        group_index=0,
        attempt=0,
        rollout_id=0,
        task=task,
        rendered=RenderedPrompt("q", (1,), "", ""),
        traces=[Trace(f"trace-{number}", task) for number in range(len(rewards))],
        seeds=list(range(len(rewards))),
        verifier_weights={"v": 1.0},
        rewards=list(rewards),
    )


class Says(GroupFilter):
    """Decides what it is told to decide, and counts how often it is asked."""

    def __init__(self, answer, name="says"):
        super().__init__()
        self.answer = answer
        self.name = name
        self.asked = 0

    def decide(self, group):
        self.asked += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


PASSED = Decision("passed")


def test_equal_rewards_are_filtered_and_the_reason_says_which():
    assert ZeroVariance().decide(group(1.0, 1.0, 1.0)) == Decision("filtered", "zero_variance_1")
    assert ZeroVariance().decide(group(0.0, 0.0)) == Decision("filtered", "zero_variance_0")
    assert ZeroVariance().decide(group(0.5, None, 0.5)) == Decision("filtered", "zero_variance_0.5")


def test_rewards_that_differ_pass():
    assert ZeroVariance().decide(group(1.0, 1.0, 0.0)) == PASSED
    assert ZeroVariance().decide(group(1.0, None, 0.0)) == PASSED


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ((None, None, None), r"^0 of .*\b3 responses were scored"),
        ((None, 1.0, None), r"^1 of .*\b3 responses were scored"),
    ],
)
def test_a_group_with_fewer_than_two_scored_responses_is_aborted_without_asking_a_filter(rewards, reason):
    asked = Says(PASSED)
    decision = decide(group(*rewards), [asked])
    assert decision.outcome == "aborted"
    assert re.search(reason, decision.reason)
    assert asked.asked == 0


def test_two_scored_responses_are_enough():
    assert decide(group(1.0, None, 0.0), [ZeroVariance()]) == PASSED


def test_without_filters_everything_scored_passes():
    assert decide(group(1.0, 1.0), []) == PASSED


def test_the_first_filter_that_does_not_pass_decides():
    filters = [Says(PASSED), Says(Decision("filtered", "second")), Says(Decision("aborted", "third"))]
    assert decide(group(1.0, 0.0), filters) == Decision("filtered", "second")
    assert [item.asked for item in filters] == [1, 1, 0]
    assert decide(group(1.0, 0.0), filters[2:]) == Decision("aborted", "third")


@given(st.lists(st.sampled_from(["passed", "filtered", "aborted"]), max_size=5))
def test_a_group_passes_only_where_every_filter_passes_it(outcomes):
    filters = [Says(Decision(outcome, str(number))) for number, outcome in enumerate(outcomes)]
    decision = decide(group(1.0, 0.0), filters)
    stopped = next((number for number, outcome in enumerate(outcomes) if outcome != "passed"), None)
    assert decision == (PASSED if stopped is None else Decision(outcomes[stopped], str(stopped)))


def test_a_filter_that_raises_is_named_with_what_it_raised():
    error = ZeroDivisionError("no rewards")
    with pytest.raises(PluginError, match=r"group filter 'shaky' raised ZeroDivisionError: no rewards") as caught:
        decide(group(1.0, 0.0), [Says(PASSED), Says(error, name="shaky")])
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [SystemExit(5), asyncio.CancelledError()], ids=lambda error: type(error).__name__)
def test_a_filter_cannot_end_the_run_in_silence(error):
    with pytest.raises(PluginError, match=f"group filter 'shaky' raised {type(error).__name__}"):
        decide(group(1.0, 0.0), [Says(error, name="shaky")])


@pytest.mark.parametrize("answer", [None, True, "passed", Decision("weird")])
def test_a_filter_that_gives_no_decision_is_named(answer):
    with pytest.raises(PluginError, match="vague"):
        decide(group(1.0, 0.0), [Says(answer, name="vague")])


@pytest.mark.parametrize(
    ("rewards", "decision"),
    [
        ((0.0, 0.0, 0.0, 0.0), Decision("filtered", "pass_rate_below_0.25")),
        ((1.0, 0.0, 0.0, 0.0), PASSED),
        ((1.0, 1.0, 0.9, None), PASSED),
        ((1.0, 1.0, 1.0, 0.5), PASSED),
        ((1.0, 1.0, 1.0, None), Decision("filtered", "pass_rate_above_0.75")),
    ],
)
def test_a_pass_rate_outside_the_band_is_dropped_with_the_bound_that_it_missed(rewards, decision):
    band = PassRate(PassRate.Config(min_pass_rate=0.25, max_pass_rate=0.75))
    assert band.decide(group(*rewards)) == decision


def test_a_band_upside_down_is_refused():
    with pytest.raises(ValueError, match=r"min_pass_rate = 0.8 is above max_pass_rate = 0.2"):
        PassRate.Config(min_pass_rate=0.8, max_pass_rate=0.2)


async def settle():
    """Lets everything that can go on go on."""
    for _ in range(20):
        await asyncio.sleep(0)


class Members:
    """Groups of two siblings; notes who reached the engine, and holds them there until they are let go."""

    def __init__(self, admission):
        self.admission = admission
        self.reached = []
        self.let_go = asyncio.Event()

    async def group(self, name):
        async with self.admission.admit():
            await asyncio.gather(*(self._sibling(name, number) for number in range(2)))

    async def _sibling(self, name, number):
        self.reached.append(f"{name}{number}")
        await self.let_go.wait()
        self.reached.append(f"{name}{number} again")


def run(scenario):
    async def main():
        admission = GroupAdmission()
        async with asyncio.timeout(20):
            await scenario(admission, Members(admission))

    asyncio.run(main())


def test_a_closed_gate_holds_back_whole_groups_and_lets_those_inside_go_on():
    async def scenario(admission, members):
        first = asyncio.create_task(members.group("a"))
        await settle()
        admission.close()
        second = asyncio.create_task(members.group("b"))
        await settle()
        assert members.reached == ["a0", "a1"]
        assert admission.in_flight == 1
        members.let_go.set()
        await first
        await settle()
        assert members.reached == ["a0", "a1", "a0 again", "a1 again"], "siblings inside go on, nobody comes in"
        assert admission.in_flight == 0
        admission.open()
        await second
        assert sorted(members.reached[4:]) == ["b0", "b0 again", "b1", "b1 again"]

    run(scenario)


def test_drained_waits_for_the_last_group_inside():
    async def scenario(admission, members):
        await admission.drained()  # nobody is in
        short = Members(admission)
        groups = [asyncio.create_task(short.group("short")), asyncio.create_task(members.group("long"))]
        await settle()
        admission.close()
        draining = asyncio.create_task(admission.drained())
        short.let_go.set()
        await groups[0]
        await settle()
        assert not draining.done()
        assert admission.in_flight == 1
        members.let_go.set()
        await asyncio.gather(*groups)
        await draining

    run(scenario)


def test_drained_does_not_wait_for_groups_before_the_gate():
    async def scenario(admission, members):
        admission.close()
        waiting = asyncio.create_task(members.group("a"))
        await settle()
        await admission.drained()
        assert not waiting.done()
        admission.open()
        members.let_go.set()
        await waiting

    run(scenario)


def test_a_gate_that_closes_again_before_anyone_came_through_stays_closed():
    async def scenario(admission, members):
        admission.close()
        waiting = asyncio.create_task(members.group("a"))
        await settle()
        admission.open()
        admission.close()
        await settle()
        assert members.reached == []
        assert admission.in_flight == 0
        admission.open()
        await settle()
        assert members.reached == ["a0", "a1"]
        members.let_go.set()
        await waiting

    run(scenario)


def test_the_gate_opens_and_closes_as_often_as_needed():
    async def scenario(admission, members):
        members.let_go.set()
        for name in "abc":
            admission.close()
            await admission.drained()
            waiting = asyncio.create_task(members.group(name))
            await settle()
            assert not waiting.done()
            admission.open()
            await waiting
        assert len(members.reached) == 12

    run(scenario)


def test_an_exception_in_the_body_gives_the_place_back_and_is_raised():
    async def scenario(admission, members):
        with pytest.raises(RuntimeError, match="a sibling failed"):
            async with admission.admit():
                assert admission.in_flight == 1
                raise RuntimeError("a sibling failed")
        assert admission.in_flight == 0
        await admission.drained()

    run(scenario)


def test_a_group_cancelled_before_the_gate_or_inside_gives_its_place_back():
    async def scenario(admission, members):
        inside = asyncio.create_task(members.group("a"))
        await settle()
        admission.close()
        before = asyncio.create_task(members.group("b"))
        await settle()
        for group_task in (before, inside):
            group_task.cancel()
        await asyncio.gather(inside, before, return_exceptions=True)
        assert (inside.cancelled(), before.cancelled()) == (True, True)
        assert admission.in_flight == 0
        await admission.drained()

    run(scenario)


class Numbers(TaskSet):
    name = "numbers"

    def __len__(self):
        return 6

    def task(self, index):
        if not 0 <= index < len(self):
            raise IndexError(index)
        return Task("x" * (index + 1), {"v": "1"}, "numbers", index, str(index))


class SkipRows(PromptFilter):
    def __init__(self, reasons):
        super().__init__()
        self.reasons = reasons
        self.asked = []

    def skip(self, task, rendered):
        self.asked.append((task.source_row, rendered.text))
        return self.reasons.get(task.source_row)


def test_skipped_prompts_are_never_dispatched_and_the_first_reason_counts():
    seen_before = SkipRows({1: "seen", 2: "seen", 3: None})
    hard = SkipRows({2: "hard", 3: "hard"})
    cursor = Cursor(
        Numbers(),
        lambda task: RenderedPrompt(task.prompt, tuple(range(len(task.prompt))), "", ""),
        {"seen_before": seen_before, "hard": hard},
        max_prompt_len=5,
        seed=0,
        shuffle=False,
        epochs=2,
    )
    taken = list(iter(cursor.take, None))
    assert [(item.task.source_row, item.attempt) for item in taken] == [(0, 0), (4, 0), (0, 1), (4, 1)]
    assert cursor.skipped == {"seen_before: seen": 4, "hard: hard": 2, "too_long": 2}
    assert [row for row, _ in seen_before.asked] == [0, 1, 2, 3, 4] * 2, "a prompt that is too long is not asked about"
    assert [row for row, _ in hard.asked] == [0, 3, 4] * 2, "what the first filter skips the second does not see"
    assert seen_before.asked[3] == (3, "xxxx"), "a filter sees the rendered prompt"


def test_a_seed_is_stable():
    """A resumed run, another machine and the next release draw what this one drew."""
    assert response_seed(0, "addition/train:47+38", 0, 0) == 7673099181377649942
    assert response_seed(0, "addition/train:47+38", 0, 0, "train") == 7673099181377649942


def test_seeds_differ_over_everything_that_they_are_derived_from():
    parts = ((0, 1, 10), ("set:1", "set:10", "set:11"), (0, 1, 10), (0, 1, 10), ("train", "eval:a", "eval:b"))
    drawn = [response_seed(*each) for each in product(*parts)]
    assert len(set(drawn)) == 3**5


@given(
    st.integers(-(2**70), 2**70),
    st.text(max_size=20),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.text(max_size=9),
)
def test_every_seed_fits_in_63_bits(rollout_seed, key, attempt, sibling, purpose):
    assert 0 <= response_seed(rollout_seed, key, attempt, sibling, purpose) < 2**63
