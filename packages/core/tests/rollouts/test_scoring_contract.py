"""What a verifier gives, made plain: nothing of its own classes travels or is read later."""

import asyncio
import os
import pickle
import sys
from pathlib import Path

import pytest

from reroll.api import Verdict
from reroll.rollouts.scoring.contract import DETAIL_LENGTH, ContractViolation, checked, described, shown, unfailing
from reroll.rollouts.scoring.pool import ScoringPool
from reroll.rollouts.scoring.worker import VerifierSpec

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)

from scoring_cases import task, trace  # noqa: E402


class Text(str):
    """A text that says what it is, and makes something else of itself where it is read."""

    def __str__(self):
        return self

    def __reduce__(self):
        return (print, ("made elsewhere",))

    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class Mute:
    def __str__(self):
        raise KeyboardInterrupt

    def __repr__(self):
        raise SystemExit("no more")


class MuteError(Exception, Mute):
    __str__ = Mute.__str__


def test_texts_are_plain_whatever_gave_them():
    found = checked(Verdict(1.0, {Text("parsed"): 1.0}, Text("completed"), Text("fine")))
    assert {type(text) for text in (found.state, found.detail, *found.components)} == {str}
    assert (found.state, found.detail, found.components) == ("completed", "fine", {"parsed": 1.0})
    assert pickle.loads(pickle.dumps(found)) == Verdict(1.0, {"parsed": 1.0}, "completed", "fine")
    assert checked(Verdict(1.0, detail=Mute())).detail == "<str raised KeyboardInterrupt>"
    assert checked(Verdict(1.0, detail=None)).detail == "None"


def test_a_long_detail_is_cut():
    assert checked(Verdict(1.0, detail="x" * DETAIL_LENGTH)).detail == "x" * DETAIL_LENGTH
    assert checked(Verdict(1.0, detail="x" * (DETAIL_LENGTH + 1))).detail == "x" * DETAIL_LENGTH + "…"
    assert len(described(ValueError("x" * 10**6))) < DETAIL_LENGTH + 20
    assert len(shown(["x" * 10**6])) < 250


@pytest.mark.parametrize("state", [["ok"], {}, None, 1, Text("great"), "OK"])
def test_a_state_that_is_none_breaks_the_contract(state):
    with pytest.raises(ContractViolation, match="it returned the state .*; states are completed, "):
        checked(Verdict(1.0, state=state))


def test_what_cannot_be_shown_is_told_all_the_same():
    assert shown(Mute()) == "<repr raised SystemExit> (Mute)"
    assert described(MuteError()) == "MuteError: <str raised KeyboardInterrupt>"


def test_a_warning_that_cannot_be_told_is_nobodys_failure(monkeypatch):
    told = []
    unfailing(told.append)("fine")
    assert told == ["fine"]

    def fail(text):
        told.append(text)
        raise BrokenPipeError("the log is gone")

    async def main():
        specs = {"plain": VerifierSpec("scoring_cases:Plain", {}, "reroll-cases")}
        async with ScoringPool(specs, 1, 20.0, warn=fail) as pool:
            of = task(plain="right")
            calls = [pool.judge("plain", of, [trace(text, of)]) for text in ("exit", "right")]
            return [item.verdicts[0].state for item in await asyncio.wait_for(asyncio.gather(*calls), 60)]

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))
    assert asyncio.run(main()) == ["service_error", "ok"]
    assert "exit code 3" in told[1]
