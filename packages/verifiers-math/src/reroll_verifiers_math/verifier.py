"""The verifier `math`."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from reroll import Config, Task, Trace, Verdict, Verifier
from reroll_verifiers_math import choices, sympy_judge
from reroll_verifiers_math.boxes import boxed
from reroll_verifiers_math.extraction import Answer, find_answer, visible
from reroll_verifiers_math.grammar import parse
from reroll_verifiers_math.judging import judge
from reroll_verifiers_math.lexer import TooDeep, Unreadable
from reroll_verifiers_math.literals import LITERAL_CHARS, literal_answer, literal_number
from reroll_verifiers_math.numeric import is_too_large
from reroll_verifiers_math.quantities import Policy, equal_literals
from reroll_verifiers_math.reading import LENGTH, cleaned, is_mathematics, read
from reroll_verifiers_math.targets import Gold, read_gold, target_text


class MathConfig(Config):
    """Options of the verifier `math`."""

    extraction: Literal["any", "boxed"] = "any"
    r"""Where answers are looked for. `boxed`: in `\boxed{…}` alone, so that `The answer is 4` has none."""

    several_boxes: Literal["join", "last"] = "join"
    r"""What boxes beside each other mean. `join`: `\boxed{3}, \boxed{5}` is the answer `3, 5`; `last`: it is `5`."""

    rounded_decimals: int = Field(default=6, ge=0)
    """Places from which on a decimal may stand for the number that it is a rounding of, as `0.333333` for 1/3; it needs
    five digits other than leading zeros as well. 0: never."""

    tolerance: float = Field(default=0.0, ge=0, lt=1)
    """Share of the target by which a number may differ from it, as in physics: with 0.01 `9.8` is 9.81. It does not
    count for parts of formulas."""

    percent: Literal["either", "exact"] = "either"
    """`either`: `28%` equals 28 and 0.28. `exact`: it equals 0.28 alone."""

    units: Literal["lenient", "required"] = "lenient"
    """`lenient`: a unit may be left out, and words that are no unit say nothing; two units must agree, after conversion
    (`1 m` is `100 cm`). `required`: there must be one where the target has one, and none where it has none."""

    max_answer_chars: int = Field(default=8000, ge=1, le=LENGTH)
    """A longer answer is refused with the state `rejected` and the score 0: no correct one is that long."""


class MathVerifier(Verifier):
    r"""1 where the answer equals the target as mathematics, else 0.

    The answer is the last `\boxed{…}` of the completion, else what it states as its answer, else the last mathematics
    in it. The target is a text, in LaTeX or plain, or a number; a `\boxed{…}` in it is looked into.
    """

    name = "math"
    Config = MathConfig

    def __init__(self, config: MathConfig | None = None) -> None:
        super().__init__(config or MathConfig())
        options = self.config
        self.policy = Policy(
            rounded_decimals=options.rounded_decimals,
            tolerance=options.tolerance,
            percent=options.percent,
            units=options.units,
        )

    def warm_up(self) -> None:
        """Loads the libraries; called before the first answer's deadline starts."""
        sympy_judge.equal_formulas("\\frac{x}{2}", "0.5x")
        judge("\\sqrt{2}", "2^{1/2}", self.policy)

    def score(self, task: Task, trace: Trace) -> Verdict:
        target = target_text(task.targets[self.name])
        text = visible(trace.completion)
        expected = None if target is None else literal_number(target)
        if expected is not None and self.config.max_answer_chars >= LITERAL_CHARS:
            literal = literal_answer(text, self.config.extraction == "boxed")
            if literal is not None:
                return _verdict(equal_literals(expected, literal, self.policy))
        gold = read_gold(task.targets[self.name])
        if gold.problem is not None:
            return Verdict(None, state="unknown", detail=gold.problem)
        answer = self._find(text, gold.words)
        refusal = "" if answer is None else self._refusal(answer.text)
        if refusal:
            return Verdict(0.0, {"parsed": 1.0}, "rejected", refusal)
        if gold.bare and self.config.extraction == "any":
            chosen = choices.find_choice(text)
            if chosen is not None:
                return _verdict(chosen == gold.choice)
        if answer is None and (len(text) > ENDLESS_CHARS or _REPEATED.search(text)):
            return Verdict(0.0, {"parsed": 0.0}, "rejected", "a text that goes on without an answer")
        if answer is None:
            return Verdict(0.0, {"parsed": 0.0})
        equal = self._equal(gold, answer.text)
        node = None if equal else read(answer.text)
        if node is not None and is_too_large(node):
            return Verdict(0.0, {"parsed": 1.0}, "rejected", "a number beyond all bounds")
        return _verdict(equal)

    def _find(self, text: str, in_words: bool) -> Answer | None:
        several = self.config.several_boxes == "join"
        if self.config.extraction == "boxed":
            found = boxed(text, several)
            return None if found is None else Answer(found, "box")
        return find_answer(text, is_mathematics, several, in_words)

    def _refusal(self, answer: str) -> str:
        """Why an answer is refused; empty for one that is judged."""
        if len(answer) > self.config.max_answer_chars:
            return f"an answer of {len(answer)} characters; at most {self.config.max_answer_chars} are read"
        if _PROGRAM.search(answer):
            return "the answer is a program"
        if _REPEATED.search(answer):
            return "the answer repeats itself without end"
        try:
            parse(cleaned(answer))
        except TooDeep as error:
            return str(error)
        except Unreadable:
            pass
        return ""

    def _equal(self, gold: Gold, answer: str) -> bool:
        if gold.choice is not None and choices.answer_choice(answer) == gold.choice:
            return True
        return judge(gold.text, answer, self.policy) or (
            gold.option is not None and judge(gold.option, answer, self.policy)
        )

    def check_target(self, target: Any) -> str | None:
        return read_gold(target).problem


ENDLESS_CHARS = 200_000
"""Characters of a completion without an answer from which on it is no attempt at one."""
_REPEATED = re.compile(r"([^\s\w]{1,8}?|\\[a-zA-Z]{1,8}\{?)\1{99,}")

# Refused by name, though nothing would run it: an answer that tries is no mistake, and is to be seen in the verdicts.
_PROGRAM = re.compile(
    r"__\w+__|\b(?:os|sys|subprocess|builtins|shutil|socket)\.\w+\s*\(|\b(?:eval|exec|compile|getattr|exit|quit)\("
    r"|\bopen\(\s*['\"]|\blambda\s*[\w,\s]{0,40}:|\bimport\s+\w+"
)


def _verdict(equal: bool) -> Verdict:
    return Verdict(float(equal), {"parsed": 1.0})
