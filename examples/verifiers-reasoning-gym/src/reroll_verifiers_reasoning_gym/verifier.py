"""The verifier `reasoning-gym`: answers judged by the scorer of the dataset that asked the question."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from numbers import Real
from typing import Any

from pydantic import Field

from reroll import Config, Task, Trace, Verdict, Verifier
from reroll_verifiers_reasoning_gym import datasets
from reroll_verifiers_reasoning_gym.entries import decode
from reroll_verifiers_reasoning_gym.extraction import Place, find_answer


class ReasoningGymVerifierConfig(Config):
    """Options of the verifier `reasoning-gym`."""

    answer: Place = "tag"
    r"""Where the answer is, thinking left out: `tag`, between the last `<answer>` and `</answer>`; `boxed`, in
    the last `\boxed{…}`; `last_line`; or `whole`, all of the text."""
    max_answer_chars: int = Field(20_000, ge=1)
    """A longer answer is refused with the state `rejected` and the score 0."""
    evaluate_answers: bool = False
    """Judge datasets whose scorers have Python evaluate the answer, such as `countdown`. What the model writes is then
    run as code, with your rights: it can read and write your files and open connections. The scoring process has a
    deadline and a memory limit, and is no sandbox. Only for runs in a container that holds nothing of value."""


class ReasoningGymVerifier(Verifier):
    """The score that the dataset's own scorer gives the answer, between 0 and 1; many give parts for a near miss.

    No answer is 0 without asking the scorer. The scorer's fault is the answer's, and a 0, where the scorer judges the
    reference answer without one; otherwise the state is `judge_error`.
    """

    name = "reasoning-gym"
    Config = ReasoningGymVerifierConfig

    def warm_up(self) -> None:
        """Imports reasoning-gym, which takes seconds."""
        datasets.usable()

    def score(self, task: Task, trace: Trace) -> Verdict:
        try:
            scorer, entry = self._read(task.targets[self.name])
        except ValueError as error:
            return Verdict(None, state="unknown", detail=str(error))
        answer = find_answer(trace.completion, self.config.answer)
        if answer is None:
            return Verdict(0.0, {"parsed": 0.0})
        if len(answer) > self.config.max_answer_chars:
            detail = f"an answer of {len(answer)} characters, at most {self.config.max_answer_chars} are read"
            return Verdict(0.0, {"parsed": 1.0}, "rejected", detail)
        try:
            score = scorer.score_answer(answer, entry)
        except MemoryError:
            raise  # says nothing about the answer
        except Exception as error:
            return self._faulty(scorer, task, f"{type(error).__name__}: {error}")
        if isinstance(score, bool) or not isinstance(score, Real) or not math.isfinite(score):
            return Verdict(None, {"parsed": 1.0}, "judge_error", f"the scorer gave {score!r:.60}, which is no score")
        return Verdict(min(max(float(score), 0.0), 1.0), {"parsed": 1.0})

    def _faulty(self, scorer: Any, task: Task, why: str) -> Verdict:
        """Whose fault it is that the scorer raised."""
        _, entry = self._read(task.targets[self.name])  # the scorer may have changed what it was given
        try:
            scorer.score_answer(entry["answer"], entry)
        except MemoryError:
            raise
        except Exception:
            return Verdict(None, {"parsed": 1.0}, "judge_error", f"the scorer raised {why}")
        return Verdict(0.0, {"parsed": 1.0}, detail=f"the scorer cannot read the answer: {why}")

    def check_target(self, target: Any) -> str | None:
        try:
            self._read(target)
        except ValueError as error:
            return str(error)
        return None

    def _read(self, target: Any) -> tuple[Any, dict[str, Any]]:
        """The scorer and the entry, which is a new one at every call; ValueError says why there is none."""
        if not isinstance(target, Mapping) or not {"dataset", "options", "entry"} <= set(target):
            raise ValueError(
                f"the target of {self.name!r} must be a table with dataset, options and entry, not {target!r:.80}"
            )
        dataset, options, entry = target["dataset"], decode(target["options"]), decode(target["entry"])
        kinds: dict[str, Any] = {"question": str, "answer": str | None, "metadata": dict}
        for name, kind in kinds.items():
            if not isinstance(entry, dict) or name not in entry or not isinstance(entry[name], kind):
                raise ValueError(f"entry.{name} is missing, or of another kind than reasoning-gym's")
        if not isinstance(dataset, str) or not isinstance(options, dict):
            raise ValueError(f"dataset = {dataset!r:.60} must be a text, and options a table")
        if dataset in datasets.EVALUATING and not self.config.evaluate_answers:
            raise ValueError(
                f"the scorer of {dataset!r} runs the answer as Python code: leave the dataset out, or read what the "
                "verifier's option evaluate_answers says of the risk"
            )
        scorer = _scorer(dataset, json.dumps(target["options"], sort_keys=True))
        if code := datasets.evaluated_in_entry(dataset, entry):
            raise ValueError(f"entry.{code} is nothing that the generator of {dataset!r} writes, and would be run")
        return scorer, entry


@lru_cache(maxsize=64)
def _scorer(dataset: str, options: str) -> Any:
    """A dataset made once, since some read files for it. It keeps nothing of what it scores."""
    return datasets.make_dataset(dataset, decode(json.loads(options)))
