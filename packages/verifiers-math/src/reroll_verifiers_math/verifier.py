"""The verifier `math`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from reroll import Config, Task, Trace, Verdict, Verifier
from reroll_verifiers_math.equality import equal_formulas, equal_numbers, normal, number, parsed
from reroll_verifiers_math.extraction import find_answer, last_boxed


class MathConfig(Config):
    """Options of the verifier `math`."""

    max_answer_chars: int = Field(default=2000, ge=1)
    """A longer answer is refused with the state `rejected` and the score 0: no correct one is that long,
    and reading it as mathematics could take for ever."""


class MathVerifier(Verifier):
    r"""1 where the answer equals the target as mathematics, else 0.

    The answer is the last `\boxed{…}` of the completion, else its last number. The target is a text, in
    LaTeX or digits, or a number; a `\boxed{…}` in it is looked into.
    """

    name = "math"
    Config = MathConfig

    def warm_up(self) -> None:
        """Loads the libraries; called before the first answer's deadline starts."""
        equal_formulas("\\frac{x}{2}", "0.5x")

    def score(self, task: Task, trace: Trace) -> Verdict:
        gold = target_text(task.targets[self.name])
        if gold is None:
            return Verdict(None, state="unknown", detail=self.check_target(task.targets[self.name]) or "")
        answer = find_answer(trace.completion)
        if answer is None:
            return Verdict(0.0, {"parsed": 0.0})
        if len(answer) > self.config.max_answer_chars:
            detail = f"an answer of {len(answer)} characters, at most {self.config.max_answer_chars} are read"
            return Verdict(0.0, {"parsed": 1.0}, "rejected", detail)
        gold_number = number(gold)
        if gold_number is None and not parsed(gold):
            return Verdict(None, {"parsed": 1.0}, "unknown", _unreadable(gold))
        return Verdict(float(self._equal(gold, answer)), {"parsed": 1.0})

    def _equal(self, gold: str, answer: str) -> bool:
        if normal(gold) == normal(answer):
            return True
        gold_number, answer_number = number(gold), number(answer)
        if gold_number is not None and answer_number is not None:
            return equal_numbers(gold_number, answer_number)
        return equal_formulas(gold, answer)

    def check_target(self, target: Any) -> str | None:
        gold = target_text(target)
        if gold is None:
            return f"the target of 'math' must be a text or a number, not {target!r}"
        if number(gold) is None and not parsed(gold):
            return _unreadable(gold)
        return None


def target_text(target: Any) -> str | None:
    """The target as the text of an answer; None if it is neither text nor number."""
    if isinstance(target, bool) or not isinstance(target, (str, int, float)):
        return None
    return last_boxed(str(target)) or str(target)


def _unreadable(gold: str) -> str:
    cut = gold if len(gold) <= 80 else gold[:80] + "…"
    return f"the target {cut!r} cannot be read as mathematics"
