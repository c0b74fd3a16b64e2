"""The scorer: every verifier is asked where its work belongs, and failures are states."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from reroll.api import PluginError, ScorerClosed, Trace
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.rollouts.scoring.scorer import Scorer, SelectedVerifier

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)

import scoring_cases as cases  # noqa: E402
from scoring_cases import task, trace  # noqa: E402


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))


def make(*classes, deadline=1.0):
    return Scorer(
        {cls.name: SelectedVerifier(cls(), "reroll-cases") for cls in classes},
        ScoringConfig(deadline_seconds=deadline, workers=1),
    )


def scored(texts, *classes, **targets):
    async def main():
        async with make(*classes) as scorer:
            of = task(**targets)
            return await asyncio.wait_for(scorer.score_group(of, [trace(text, of) for text in texts]), 60)

    return asyncio.run(main())


def test_every_kind_of_verifier_is_asked():
    found = scored(["right", "no"], cases.Plain, cases.Grouped, cases.Service, plain="right", grouped=0, service=0)
    assert [{name: verdict.score for name, verdict in verdicts.items()} for verdicts in found] == [
        {"plain": 1.0, "grouped": 1.0, "service": 1.0},
        {"plain": 0.0, "grouped": 0.0, "service": 1.0},
    ]
    assert found[0]["service"].state == "completed"


def test_only_verifiers_that_the_task_names_are_asked():
    assert [set(verdicts) for verdicts in scored(["right"], cases.Plain, cases.Service, plain="right")] == [{"plain"}]
    assert scored([], cases.Plain, plain="right") == []


def test_one_trace_is_a_group_of_one():
    async def main():
        async with make(cases.Grouped) as scorer:
            of = task(grouped=0)
            return await scorer.score(of, trace("a", of))

    assert asyncio.run(main())["grouped"].score == 1.0


def test_asynchronous_calls_are_bounded_and_timed_from_their_start():
    cases.Service.most = 0
    # 40 slots of at least 10 ms, three at a time; those that hang would starve the others of a common deadline.
    texts = ["hang" if i in (3, 20) else "fine" for i in range(40)]
    found = [verdicts["service"] for verdicts in scored(texts, cases.Service, service=0)]
    assert [verdict.state for verdict in found] == ["timeout" if t == "hang" else "completed" for t in texts]
    assert cases.Service.most <= cases.Service.concurrency


def test_asynchronous_failures_are_states():
    found = [v["service"] for v in scored(["raise", "stubborn", "fine"], cases.Service, service=0)]
    assert [verdict.state for verdict in found] == ["service_error", "completed", "completed"]
    assert found[0].detail == "ValueError: cannot judge this"


def test_an_asynchronous_call_that_refuses_to_end_is_left_behind():
    async def main():
        async with make(cases.Service, deadline=0.2) as scorer:
            of = task(service=0)
            return await scorer.score(of, trace("stubborn", of))

    assert asyncio.run(main())["service"].state == "timeout"


@pytest.mark.parametrize("text", ["return text", "return nan", "return bool"])
def test_what_is_no_verdict_ends_the_run(text):
    with pytest.raises(PluginError, match="'service' of reroll-cases broke its contract: it returned"):
        scored(["fine", text], cases.Service, service=0)
    with pytest.raises(PluginError, match="'plain' of reroll-cases broke its contract: it returned"):
        scored(["right", text], cases.Plain, plain="right")


def test_an_unknown_verifier_is_an_error():
    with pytest.raises(PluginError, match="'other', which is not among those of the run: plain"):
        scored(["right"], cases.Plain, other=1)


def test_verifiers_may_be_given_as_they_are():
    async def main():
        of = task(plain="right", service=0)
        async with Scorer({"plain": cases.Plain(), "service": cases.Service()}, ScoringConfig(workers=1)) as scorer:
            found = await asyncio.wait_for(scorer.score(of, Trace.of(of, "right")), 60)
            with pytest.raises(PluginError, match="'service' of scoring_cases broke its contract"):
                await scorer.score(of, Trace.of(of, "return text"))
        with pytest.raises(ScorerClosed, match="the scorer is closed; make another one"):
            await scorer.score(of, Trace.of(of, "right"))
        return found

    assert {name: verdict.score for name, verdict in asyncio.run(main()).items()} == {"plain": 1.0, "service": 1.0}


def test_a_class_that_no_process_can_import_is_refused():
    class Local(cases.Plain):
        name = "local"

    class Script(cases.Plain):
        name = "script"

    Script.__module__, Script.__qualname__ = "__main__", "Script"
    for cls in (Local, Script):
        with pytest.raises(PluginError, match=f"{cls.name}.* put the class at the top of a module"):
            Scorer({cls.name: cls()})


def test_a_class_implements_exactly_one_method():
    with pytest.raises(PluginError, match="'both' of reroll-cases implements both"):
        make(cases.Both)

    class Neither(cases.Verifier):
        name = "neither"

    with pytest.raises(PluginError, match="'neither' of reroll-cases implements neither"):
        make(Neither)
