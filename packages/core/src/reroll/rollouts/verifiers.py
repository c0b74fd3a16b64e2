"""The built-in verifiers: answers compared as text."""

from __future__ import annotations

import re
from collections import deque
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, field_validator

from reroll.api import Config, Task, Trace, Verdict, Verifier, one_line


class TextConfig(Config):
    """How two texts are compared."""

    strip: bool = True
    """Ignore white space at both ends of answer and target."""

    case_sensitive: bool = True
    """Whether `Yes` and `yes` are different answers."""


class TextVerifier(Verifier):
    """Compares what it finds in the completion with the target: a text, or a list of texts of which one
    suffices. `components["parsed"]` says whether it found anything to compare."""

    Config: ClassVar[type[BaseModel]] = TextConfig

    def answer(self, completion: str) -> str | None:
        """What is compared with the target, or None if there is nothing."""
        raise NotImplementedError

    def score(self, task: Task, trace: Trace) -> Verdict:
        target = task.targets[self.name]
        if problem := self.check_target(target):
            return Verdict(None, state="unknown", detail=problem)
        found = self.answer(trace.completion)
        if found is None:
            return Verdict(0.0, {"parsed": 0.0})
        accepted = {self._normal(text) for text in ([target] if isinstance(target, str) else target)}
        return Verdict(float(self._normal(found) in accepted), {"parsed": 1.0})

    def check_target(self, target: Any) -> str | None:
        texts = [target] if isinstance(target, str) else target
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            return f"the target of {self.name!r} must be a text or a list of texts, not {one_line(repr(target))}"
        return None

    def _normal(self, text: str) -> str:
        text = text.strip() if self.config.strip else text
        return text if self.config.case_sensitive else text.casefold()


class ExactMatch(TextVerifier):
    """1 where the whole completion is the target. A completion of nothing but white space is no answer."""

    name = "exact_match"

    def answer(self, completion: str) -> str | None:
        return completion if completion.strip() else None


class RegexConfig(TextConfig):
    """How an answer is found in a completion."""

    pattern: str
    """Regular expression (Python's `re`) that finds the answer: its first group, or the whole match if it
    has none. What it finds is compared with the target; the target itself is no pattern."""

    which: Literal["last", "first"] = "last"
    """The match that counts, where there are several."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return pattern


class Regex(TextVerifier):
    """1 where the text that `pattern` finds in the completion is the target."""

    name = "regex"
    Config = RegexConfig

    def __init__(self, config: RegexConfig | None = None) -> None:
        super().__init__(config)
        self.pattern = re.compile(self.config.pattern)

    def answer(self, completion: str) -> str | None:
        matches = self.pattern.finditer(completion)
        match = next(matches, None) if self.config.which == "first" else next(iter(deque(matches, maxlen=1)), None)
        if match is None:
            return None
        # A group that took no part in the match found nothing.
        found: str | None = match[1] if self.pattern.groups else match[0]
        return found
