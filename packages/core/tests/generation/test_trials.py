"""One attempt: what is tried again, what is final, and that seeds are the design's."""

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from trial_cases import SEED, Answers, Compared, Fragile, Scripted, case

from reroll.api import EngineError, RequestRefused, WorkerDied
from reroll.generation import trials
from reroll.rollouts.seeds import response_seed


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(trials, "FIRST_PAUSE", 0.0)


def run(body):
    asyncio.run(asyncio.wait_for(body(), 60))


def one(*verifiers, **options):
    """Entry, group and case of one attempt."""
    found = []

    async def body():
        async with case(*verifiers, **options) as made:
            (entry,), group, _ = await made.run()
            found.append((entry, group, made))

    run(body)
    return found[0]


def test_a_judged_attempt_is_kept_with_all_that_it_came_to():
    verifier = Scripted("1.0")
    entry, group, made = one(verifier)
    seed = response_seed(SEED, "rows:r0", 0, 0, "generate")
    assert (entry.outcome, entry.final, entry.reward, entry.detail) == ("passed", True, 1.0, "")
    assert (entry.prompt_tokens, entry.tokens, entry.truncated, entry.seed) == (2, 2, False, seed)
    assert (entry.source, entry.source_dataset, entry.source_row, entry.prepared_sample_id) == ("rows", "rows", 0, "r0")
    assert (group.source, group.env_name) == ("generate", "rows")
    assert [request.sampling.seed for request in made.engine.requests] == [seed]
    assert made.generated == [group]


def test_a_wrong_answer_is_a_failure_and_is_not_tried_again():
    verifier = Scripted("0.5")
    entry, _, made = one(verifier)
    assert (entry.outcome, entry.final, entry.reward) == ("failed", True, 0.5)
    assert (len(made.engine.requests), len(verifier.asked)) == (1, 1)


@pytest.mark.parametrize(("pass_reward", "outcome"), [(0.4, "passed"), (0.5, "passed"), (0.6, "failed")])
def test_what_passes_may_be_said_by_reward(pass_reward, outcome):
    assert one(Scripted("0.5"), pass_reward=pass_reward)[0].outcome == outcome


@pytest.mark.parametrize("failure", ["raise", "hang"])
def test_a_verifier_that_fails_is_asked_again_about_the_same_answer(failure):
    verifier = Scripted(failure, failure, "0.0")
    entry, group, made = one(verifier)
    assert (entry.outcome, entry.final, entry.detail) == ("failed", True, "")
    assert len(made.engine.requests) == 1, "nothing is generated again"
    assert verifier.asked == [group.traces[0].id] * 3
    assert group.traces[0].errors == []


@pytest.mark.parametrize("failure", ["raise", "hang"])
@pytest.mark.parametrize("policy", ["exclude", 0.0, 1.0])
def test_a_verifier_that_goes_on_failing_makes_no_failure_and_no_pass(failure, policy):
    verifier = Scripted(*[failure] * 10)
    entry, group, _ = one(verifier, retries=2, policy=policy)
    assert (entry.outcome, entry.final, entry.reward) == ("error", False, None)
    assert entry.detail.startswith("verifier scripted: ")
    assert len(verifier.asked) == 3
    assert len(group.traces[0].errors) == 1, "the last try's"


def test_what_cannot_be_judged_is_final():
    verifier = Scripted("unknown")
    entry, _, made = one(verifier)
    assert (entry.outcome, entry.final, entry.reward) == ("error", True, None)
    assert entry.detail == "verifier scripted: unknown: in no language that it knows"
    assert (len(verifier.asked), len(made.engine.requests)) == (1, 1)


class Other(Scripted):
    name = "other"


def test_what_one_verifier_cannot_judge_is_not_final_while_another_fails():
    entry, _, _ = one(Scripted(*["unknown"] * 9), Other(*["raise"] * 9), retries=2)
    assert (entry.outcome, entry.final) == ("error", False)
    entry, _, _ = one(Scripted(*["unknown"] * 9), Other("raise", "1.0"), retries=2)
    assert (entry.outcome, entry.final) == ("error", True)


def test_a_harness_that_raises_is_run_again():
    entry, group, made = one(Scripted("1.0"), harness=Fragile(2))
    assert (entry.outcome, entry.final) == ("passed", True)
    assert made.generated == [group], "told once, when the responses are there"
    entry, _, made = one(Scripted("1.0"), harness=Fragile(99), retries=2)
    assert (entry.outcome, entry.final, entry.tokens) == ("error", False, 0)
    assert entry.detail == "harness fragile: OSError: no sandbox"


@pytest.mark.parametrize("behave", ["abort", "refuse"])
def test_a_response_that_the_engine_did_not_finish_is_generated_again(behave):
    def first(number, request):
        if number <= 2 and behave == "refuse":
            raise RequestRefused("too many")
        return {"finish": "abort"} if number <= 2 else None

    entry, _, made = one(Scripted("1.0"), engine=Answers(first))
    assert (entry.outcome, len(made.engine.requests)) == ("passed", 3)
    assert len({request.sampling.seed for request in made.engine.requests}) == 1


def test_a_truncated_response_is_judged_and_said_to_be():
    entry, _, _ = one(Scripted("0.0"), engine=Answers(lambda number, request: {"finish": "length"}))
    assert (entry.outcome, entry.truncated) == ("failed", True)


def test_an_engine_with_other_weights_ends_everything():
    async def body():
        verifier = Scripted()
        async with case(verifier, engine=Answers(lambda number, request: {"version": 1})) as made:
            with pytest.raises(EngineError, match="weights of version 1: another run loads weights into it"):
                await made.run()
        assert verifier.asked == []

    run(body)


@pytest.mark.parametrize("error", [EngineError("no engine is left"), WorkerDied("engine-0", "was killed")])
def test_what_is_no_property_of_an_attempt_ends_everything(error):
    def fail(number, request):
        raise error

    async def body():
        async with case(Scripted(), engine=Answers(fail)) as made:
            with pytest.raises(type(error)) as caught:
                await made.run()
            assert caught.value is error

    run(body)


def test_retries_may_be_none():
    verifier = Scripted("raise", "1.0")
    assert one(verifier, retries=0)[0].outcome == "error"
    assert one(Scripted("1.0"), harness=Fragile(1), retries=0)[0].outcome == "error"


def test_seeds_are_equal_however_trials_are_cut_into_jobs():
    async def body():
        found = []
        for cuts in ([range(6)], [range(n, n + 1) for n in range(6)], [range(4, 6), range(1), range(1, 4)]):
            async with case(Scripted()) as made:
                entries = [entry for cut in cuts for entry in (await made.run(3, cut))[0]]
                assert [request.sampling.seed for request in made.engine.requests] == [one.seed for one in entries]
                found.append({entry.trial: (entry.seed, entry.outcome) for entry in entries})
        assert found[0] == found[1] == found[2]
        assert {trial: seed for trial, (seed, _) in found[0].items()} == {
            trial: response_seed(SEED, "rows:r3", 0, trial, "generate") for trial in range(6)
        }
        assert len({seed for seed, _ in found[0].values()}) == 6

    run(body)


def test_each_of_several_trials_is_kept_as_a_group_of_its_own():
    async def body():
        async with case(Scripted("1.0", "0.0", "unknown")) as made:
            entries, group, finished = await made.run(1, range(2, 5))
            assert [entry.outcome for entry in entries] == ["passed", "failed", "error"]
            kept = [item.saved.group for item in finished]
            assert [one.traces for one in kept] == [[trace] for trace in group.traces]
            assert [one.seeds for one in kept] == [[seed] for seed in group.seeds]
            assert len({one.observation_id for one in kept}) == 3

    run(body)


def test_a_verifier_that_compares_gets_all_trials_of_a_task_together(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)

    async def body():
        async with case(Compared()) as made:
            entries, group, _ = await made.run(2, range(4))
            assert [entry.outcome for entry in entries] == ["passed", "failed", "failed", "failed"]
            assert {trace.verdicts["compared"].components["seen"] for trace in group.traces} == {4.0}

    run(body)


def test_what_failed_before_it_was_judged_stays_so_while_others_are_judged_again():
    class FirstFails(Fragile):
        async def run(self, task, rendered, context):
            if context.sampling.seed == response_seed(SEED, "rows:r0", 0, 0, "generate"):
                raise OSError("no sandbox")
            return await super().run(task, rendered, context)

    async def body():
        verifier = Scripted("unknown", "raise", "1.0")
        async with case(verifier, harness=FirstFails(0), retries=1) as made:
            entries, group, _ = await made.run(0, range(3))
            assert [(entry.outcome, entry.final) for entry in entries] == [
                ("error", False),
                ("error", True),
                ("passed", True),
            ]
            assert entries[0].detail == "harness fragile: OSError: no sandbox"
            assert verifier.asked == [group.traces[1].id, group.traces[2].id, group.traces[2].id]

    run(body)


def test_the_slot_is_held_while_responses_are_generated_and_not_while_they_are_judged():
    held = []

    @asynccontextmanager
    async def slot():
        held.append(True)
        yield
        held.pop()

    class Watching(Scripted):
        async def score(self, task, trace):
            assert held == [], "it is given back"
            return await super().score(task, trace)

    def behave(number, request):
        assert held == [True]
        if number == 1:
            raise RequestRefused("again")

    async def body():
        async with case(Watching("raise", "1.0"), engine=Answers(behave)) as made:
            (entry,), _, _ = await made.run(slot=slot())
            assert entry.outcome == "passed"

    run(body)


def test_pauses_grow_to_a_bound_and_are_drawn(monkeypatch):
    monkeypatch.setattr(trials, "FIRST_PAUSE", 0.5)
    found = [[trials.pause(again) for _ in range(50)] for again in range(40)]
    for again, drawn in enumerate(found):
        most = min(0.5 * 2**again, trials.LONGEST_PAUSE)
        assert all(most / 2 <= one <= most for one in drawn)
        assert len(set(drawn)) > 1
    assert trials.pause(5000) <= trials.LONGEST_PAUSE
