"""Labelled cases of every kind of answer: `cases.jsonl` has a completion, a target and whether it is right."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases.jsonl").read_text().splitlines()]
KINDS = defaultdict(list)
for case in CASES:
    KINDS[case["kind"]].append(case)

POLICY = {
    "fractions-019": "six places are enough to stand for 22/7",
    "e3e2f2f4f1": "1.200 is read as a decimal where nothing says that the point groups digits",
    "55eed13f1d": "without a stated answer the last number counts, not the first",
    "31689daef0": "an answer given twice in one box is a list of two",
    "2f741e0396": "abbreviations of words are other words",
    "374a12b9ac": "a box of a next problem is the last one, where no line says that a problem begins",
    "02c195309c": "an exact answer beside its rounding is compared exactly",
}
"""Cases that a convention decides, and why ours decides them otherwise than their label."""


def test_cases_are_told_apart():
    assert len({case["id"] for case in CASES}) == len(CASES)
    assert len({(case["gold"], case["answer"]) for case in CASES}) == len(CASES)
    assert {case["basis"] for case in CASES} == {"fact", "policy"}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_case_is_judged_as_labelled(judge, kind):
    wrong = {}
    for case in KINDS[kind]:
        verdict = judge(case["gold"], case["answer"])
        if verdict.score != float(case["expected"]):
            wrong[case["id"]] = verdict
    assert set(wrong) == {case["id"] for case in KINDS[kind]} & set(POLICY), wrong
    assert all(case["basis"] == "policy" for case in KINDS[kind] if case["id"] in wrong)
