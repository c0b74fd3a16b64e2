"""The data sets `gsm8k` and `math`, from rows in the forms in which they are published."""

import json

import pytest

from reroll import TaskError
from reroll.tasks.catalog.prepare import Package, prepare
from reroll.tasks.catalog.rows import How
from reroll.tasks.catalog.sources import file_source
from reroll_verifiers_math.datasets import GSM8KDataset, MathConfig, MathDataset, number
from reroll_verifiers_math.verifier import MathVerifier

CHAT = [{"role": "user", "content": "How many legs have two cows?"}]


@pytest.mark.parametrize(
    ("raw", "target"),
    [
        (
            {
                "question": "Ann has 12 jars of 100 beans. How many beans?",
                "answer": "She has 12*100 = <<12*100=1200>>1200 beans.\n#### 1,200",
            },
            "1200",
        ),
        ({"question": "q", "answer": "It falls by <<3-5=-2>>2.\n#### -2"}, "-2"),
        ({"question": "q", "answer": "#### $7.50"}, "7.50"),
        ({"question": "q", "answer": "18"}, "18"),
        ({"question": "q", "answer": 18}, "18"),
        ({"question": "q", "answer": 18.0}, "18"),
        ({"problem": "q", "answer": "1,000,000."}, "1000000"),
        ({"question": "q", "answer": "#### <<1+1=2>>2"}, "2"),
        ({"messages": CHAT, "ground_truth": "8", "dataset": "gsm8k"}, "8"),
    ],
)
def test_a_row_of_gsm8k_has_the_number_behind_its_marks(raw, target):
    row = GSM8KDataset().row(raw)
    assert row.target == target
    assert row.messages == (CHAT if "messages" in raw else None)
    assert MathVerifier().check_target(row.target) is None


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"question": "q", "answer": "about eight"}, "gives no number; an answer ends in `#### 42`"),
        ({"question": "q", "answer": "#### eight"}, "`#### eight` gives no number"),
        ({"question": "q", "answer": "a\n####"}, "gives no number"),
        ({"question": "q"}, "has no 'answer' and no 'ground_truth'; its fields: question"),
        ({"answer": "#### 1"}, "has no 'question' and no 'problem'"),
        ({"question": " ", "answer": "#### 1"}, "question = ' ' is no text"),
        ({"question": 3, "answer": "#### 1"}, "question = 3 is no text"),
        ({"question": "q", "answer": True}, "answer = True is no text"),
        ({"messages": [], "ground_truth": "1"}, r"messages = \[\] is no list of messages"),
    ],
)
def test_a_row_of_gsm8k_that_cannot_be_read_says_why(raw, told):
    with pytest.raises(TaskError, match=told):
        GSM8KDataset().row(raw)


def test_annotations_hold_no_answer():
    assert number("<<2*3=6>>6 in all, so <<6+1=7>>7\n#### 7") == "7"


@pytest.mark.parametrize(
    ("raw", "target"),
    [
        (
            {
                "problem": "Simplify $\\frac{2}{4}$.",
                "level": "Level 2",
                "type": "Prealgebra",
                "solution": "First $\\boxed{2}$ is common, so $\\frac{2}{4} = \\boxed{\\frac{1}{2}}$.",
            },
            "\\frac{1}{2}",
        ),
        ({"problem": "p", "solution": "\\boxed{3}", "answer": "5", "subject": "Algebra", "level": 5}, "5"),
        ({"problem": "p", "answer": "\\boxed{x^{2}}"}, "x^{2}"),
        ({"problem": "p", "solution": "So $x = \\boxed{1}$ or $\\boxed{\\sqrt{2}}$."}, "1, \\sqrt{2}"),
        ({"question": "p", "answer": 3}, "3"),
        ({"messages": CHAT, "ground_truth": "8", "dataset": "MATH"}, "8"),
    ],
)
def test_a_row_of_math_has_its_answer(raw, target):
    row = MathDataset().row(raw)
    assert row.target == target
    assert MathVerifier().check_target(row.target) is None


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"problem": "p", "solution": "It is 3."}, "boxes no answer"),
        ({"problem": "p", "solution": "\\boxed{3"}, "boxes no answer"),
        ({"problem": "p"}, "has no 'answer'; its fields: problem"),
        ({"solution": "\\boxed{3}"}, "has no 'problem' and no 'question'"),
        ({"messages": CHAT, "answer": "3"}, "has no 'ground_truth'"),
    ],
)
def test_a_row_of_math_that_cannot_be_read_says_why(raw, told):
    with pytest.raises(TaskError, match=told):
        MathDataset().row(raw)


def test_levels_and_subjects_are_chosen_by_options():
    rows = [
        {"problem": "p", "answer": "1", "level": "Level 5", "type": "Geometry"},
        {"problem": "p", "answer": "1", "level": 1, "subject": "Algebra"},
        {"problem": "p", "answer": "1", "level": "Level ?", "type": "Algebra"},
    ]
    hard = MathDataset(MathConfig(levels=[4, 5]))
    assert [row if isinstance(row, str) else row.metadata for row in map(hard.row, rows)] == [
        {"level": 5, "subject": "Geometry"},
        "another level",
        "another level",
    ]
    algebra = MathDataset(MathConfig(subjects=["Algebra"]))
    assert [isinstance(algebra.row(row), str) for row in rows] == [True, False, False]


def test_a_prepared_set_keeps_latex_and_its_counts(tmp_path):
    rows = [
        {
            "problem": "Find $\\sqrt{{4}}$ and {problem}.",
            "level": "Level 1",
            "type": "Algebra",
            "solution": "\\boxed{2}",
        },
        {"problem": "Find $x$.", "level": "Level 5", "solution": "\\boxed{3}"},
    ]
    source = tmp_path / "train.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    package = Package("reroll-verifiers-math", "0.1.0")
    dataset = MathDataset(MathConfig(levels=[1]))
    done = prepare(dataset, package, file_source(source), tmp_path / "out", How(), MathVerifier())
    (line,) = (tmp_path / "out" / "train.jsonl").read_text().splitlines()
    assert json.loads(line)["messages"][0]["content"] == (
        "Find $\\sqrt{{4}}$ and {problem}.\n\nReason step by step, and put the final answer within \\boxed{}."
    )
    facts = done.manifest.facts
    assert facts.splits["train"].left_out == {"another level": 1}
    assert facts.versions["reroll-verifiers-math"] == "0.1.0"
