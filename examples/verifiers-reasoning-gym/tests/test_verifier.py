"""Answers are judged by the dataset's own scorer, and nothing else decides."""

import math
from decimal import Decimal

import pytest
from answering import answered, entry_of, task_of

from reroll import Task
from reroll_verifiers_reasoning_gym import verifier as module
from reroll_verifiers_reasoning_gym.verifier import ReasoningGymVerifier

QUICK = [
    "arc_1d",
    "chain_sum",
    "gsm_symbolic",
    "knights_knaves",
    "polynomial_equations",
    "rearc",
    "shortest_path",
    "zebra_puzzles",
]


@pytest.mark.parametrize("dataset", QUICK)
def test_the_reference_answer_gets_the_full_score_from_a_saved_target(judge, dataset):
    task = task_of(dataset)
    verdict = judge(task, f"<think>hm</think><answer>{entry_of(task)['answer']}</answer>")
    assert (verdict.score, verdict.state, dict(verdict.components)) == (1.0, "ok", {"parsed": 1.0})


def test_a_wrong_answer_and_none(judge):
    task = task_of("chain_sum")
    assert judge(task, "<answer>a lot</answer>").score == 0.0
    verdict = judge(task, entry_of(task)["answer"])
    assert (verdict.score, dict(verdict.components)) == (0.0, {"parsed": 0.0})


def test_no_answer_is_nothing_where_the_scorer_would_give_a_part(judge):
    task = task_of("fraction_simplification")
    assert module._scorer("fraction_simplification", "{}").score_answer("", {"answer": "1/2", "metadata": {}}) > 0
    assert judge(task, "<answer></answer>").score == 0.0


def test_near_misses_keep_the_scorers_part(judge):
    task = task_of("chain_sum")
    answer = entry_of(task)["answer"]
    assert 0 < judge(task, f"<answer>it is {answer}</answer>").score < 1


def test_the_generators_options_count(judge):
    # Its scorer takes an error of one in the last decimal place that the options allow.
    exact, rough = (
        task_of("decimal_arithmetic", min_num_decimal_places=1, max_num_decimal_places=most) for most in (6, 1)
    )
    target = {**rough.targets["reasoning-gym"], "entry": entry_of(exact)}
    answer = f"<answer>{Decimal(entry_of(exact)['answer']) + Decimal('0.01')}</answer>"
    assert judge(exact, answer).score == 0.0
    assert judge(Task("", {"reasoning-gym": target}, "tests", 0, "0"), answer).score == 1.0


def test_where_the_answer_is_can_be_chosen(judge):
    task = task_of("chain_sum")
    answer = entry_of(task)["answer"]
    assert judge(task, rf"so \boxed{{{answer}}}", answer="boxed").score == 1.0
    assert judge(task, f"so\n{answer}", answer="last_line").score == 1.0
    assert judge(task, answer, answer="whole").score == 1.0


def test_a_long_answer_is_refused(judge):
    verdict = judge(task_of("chain_sum"), f"<answer>{'9' * 101}</answer>", max_answer_chars=100)
    assert (verdict.score, verdict.state) == (0.0, "rejected")


def test_a_scorer_that_cannot_read_the_answer_says_so(judge):
    verdict = judge(task_of("prime_factorization"), "<answer>two times three</answer>")
    assert (verdict.score, verdict.state) == (0.0, "ok")
    assert verdict.detail.startswith("the scorer cannot read the answer: ValueError")


class Scorer:
    def __init__(self, score):
        self.score = score

    def score_answer(self, answer, entry):
        entry.clear()
        if isinstance(self.score, BaseException):
            raise self.score
        return self.score


def judged_by(score, monkeypatch):
    monkeypatch.setattr(module, "_scorer", lambda dataset, options: Scorer(score))
    task = task_of("chain_sum")
    return ReasoningGymVerifier().score(task, answered(task, "<answer>1</answer>"))


@pytest.mark.parametrize(("score", "counted"), [(7, 1.0), (-2.5, 0.0), (0.25, 0.25)])
def test_scores_are_kept_between_0_and_1(monkeypatch, score, counted):
    assert judged_by(score, monkeypatch).score == counted


@pytest.mark.parametrize("score", [math.nan, math.inf, None, "1", True, RuntimeError("broken")])
def test_what_is_no_score_is_a_state(monkeypatch, score):
    verdict = judged_by(score, monkeypatch)
    assert (verdict.score, verdict.state) == (None, "judge_error")


def test_a_lack_of_memory_is_not_the_answers_fault(monkeypatch):
    with pytest.raises(MemoryError):
        judged_by(MemoryError(), monkeypatch)


def test_answers_are_not_run_unless_that_is_asked_for(judge, tmp_path):
    task, witness = task_of("spiral_matrix"), tmp_path / "witness"
    answer = f"<answer>[open({str(witness)!r}, 'w').close()]</answer>"
    verdict = judge(task, answer)
    assert (verdict.score, verdict.state) == (None, "unknown") and "evaluate_answers" in verdict.detail
    assert not witness.exists()
    judge(task, answer, evaluate_answers=True)
    assert witness.exists()


@pytest.mark.parametrize(("dataset", "field"), [("bitwise_arithmetic", "problem"), ("number_sorting", "answer")])
def test_code_in_a_target_is_not_run(judge, tmp_path, dataset, field):
    task, witness = task_of(dataset), tmp_path / "witness"
    good = f"<answer>{entry_of(task)['answer']}</answer>"
    assert judge(task, good).score == 1.0
    code = f"open({str(witness)!r}, 'w').close()"
    entry = entry_of(task)
    changed = (
        {**entry, "answer": code} if field == "answer" else {**entry, "metadata": {**entry["metadata"], field: code}}
    )
    target = {**task.targets["reasoning-gym"], "entry": changed}
    verdict = judge(Task("", {"reasoning-gym": target}, "tests", 0, "0"), "<answer>[1]</answer>")
    assert verdict.state == "unknown" and "would be run" in verdict.detail
    assert not witness.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "chain_sums"}, "did you mean chain_sum"),
        ({"dataset": "coin_flip"}, "gives the full score to wrong answers"),
        ({"dataset": 3}, "must be a text"),
        ({"options": {"max_term": 1}}, "did you mean max_terms"),
        ({"options": {"min_terms": 0}}, "must be positive"),
        ({"options": []}, "options a table"),
        ({"entry": {"question": "?", "answer": "1"}}, "entry.metadata is missing"),
        ({"entry": {"question": "?", "answer": 1, "metadata": {}}}, "entry.answer is missing, or of another kind"),
        ({"entry": {"$tuple": 3}}, "$tuple"),
        ({"entry": None}, "entry.question"),
    ],
)
def test_a_target_that_can_never_be_judged_is_told_before_the_run(change, message):
    target = {**task_of("chain_sum").targets["reasoning-gym"], **change}
    assert message in ReasoningGymVerifier().check_target(target)
    task = Task("", {"reasoning-gym": target}, "tests", 0, "0")
    assert ReasoningGymVerifier().score(task, answered(task, "<answer>1</answer>")).state == "unknown"


def test_any_other_target_is_refused():
    assert ReasoningGymVerifier().check_target(task_of("chain_sum").targets["reasoning-gym"]) is None
    for target in ("4", None, {"dataset": "gcd"}):
        assert "must be a table with dataset, options and entry" in ReasoningGymVerifier().check_target(target)
