"""The verifier `instructions`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from reroll import Config, Task, Trace, Verdict, Verifier
from reroll_verifiers_if.answers import final_answer, loose_variants
from reroll_verifiers_if.language import detect
from reroll_verifiers_if.once import forget
from reroll_verifiers_if.registry import instructions
from reroll_verifiers_if.targets import Asked, TargetError, read_target
from reroll_verifiers_if.texts import is_blank


class InstructionsConfig(Config):
    """Options of the verifier `instructions`."""

    mode: Literal["strict", "loose"] = "strict"
    """`strict` judges the answer as it is. `loose` lets an instruction pass if any of the IFEval paper's eight readings
    of the answer follows it: without its first line, its last or both, each with and without asterisks."""

    aggregate: Literal["all", "mean"] = "all"
    """`all` scores 1 where every instruction is followed, else 0; `mean` scores the share that is."""

    keep_thinking: bool = False
    """Judges the whole completion, thinking included; without it, only what `reroll.without_thinking` leaves."""

    max_answer_chars: int = Field(default=200_000, ge=1)
    """A longer answer is refused unread, with the state `rejected` and the score 0."""


class InstructionsVerifier(Verifier):
    """How far an answer follows the instructions of its task, each judged by rule.

    The target names instructions of IFEval and IFBench with their parameters, in the form of those data sets or as a
    list of `{"id": …, …}`. Components: one per instruction, 1 or 0 in the chosen mode, with `#2` behind an id that
    comes again; `strict` and `loose`, whether all are followed in that mode; `parsed`, whether there is an answer.
    """

    name = "instructions"
    Config = InstructionsConfig

    def warm_up(self) -> None:
        """Loads the judges and the language profiles; called before the first answer's deadline starts."""
        instructions()
        detect("This sentence is here to be recognised as English.")

    def score(self, task: Task, trace: Trace) -> Verdict:
        try:
            asked = read_target(task.targets[self.name], last_user_text(task))
        except TargetError as error:
            return Verdict(None, state="unknown", detail=str(error))
        answer = final_answer(trace.completion, self.config.keep_thinking)
        parsed = float(not is_blank(answer[: self.config.max_answer_chars]))
        if len(answer) > self.config.max_answer_chars:
            detail = f"an answer of {len(answer)} characters, at most {self.config.max_answer_chars} are read"
            return Verdict(0.0, {"parsed": parsed}, "rejected", detail)
        try:
            strict, loose = _judge(asked, answer)
        finally:
            forget()
        chosen = strict if self.config.mode == "strict" else loose
        components = {name: float(followed) for name, followed in chosen.items()}
        components |= {"strict": float(all(strict.values())), "loose": float(all(loose.values())), "parsed": parsed}
        score = components[self.config.mode] if self.config.aggregate == "all" else sum(chosen.values()) / len(chosen)
        missed = [name for name, followed in chosen.items() if not followed]
        return Verdict(score, components, detail=f"not followed: {', '.join(missed)}" if missed else "")

    def check_target(self, target: Any) -> str | None:
        try:
            read_target(target)
        except TargetError as error:
            return str(error)
        return None


def _judge(asked: list[Asked], answer: str) -> tuple[dict[str, bool], dict[str, bool]]:
    """Name of an instruction → whether the answer follows it, by strict and by loose judging."""
    strict: dict[str, bool] = {}
    loose: dict[str, bool] = {}
    variants = loose_variants(answer)
    judged: dict[Any, tuple[bool, bool]] = {}
    for item in asked:
        # A target may repeat one instruction a hundred times.
        key = item.instruction.id, tuple(item.values.items())
        if key not in judged:
            followed = item.follows(answer)
            judged[key] = followed, followed or any(map(item.follows, variants[1:]))
        strict[item.name], loose[item.name] = judged[key]
    return strict, loose


def last_user_text(task: Task) -> str:
    """The text of the task's last user message; empty if there is none."""
    for message in reversed(task.messages):
        if message.get("role") == "user":
            content = message.get("content") or ""
            if isinstance(content, str):
                return content
            return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""
