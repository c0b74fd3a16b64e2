"""The derivation `judge`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from reroll import Anchor, Config, Derivation, Message, Task, Trace, Verdict
from reroll.replay import conversation, original_reward
from reroll_replay_judge.transcript import LEAST_BUDGET, transcript

YES, NO = "yes", "no"
_WORDS = re.compile(rf"\b(?:{YES}|{NO})\b", re.IGNORECASE)


class JudgeConfig(Config):
    """Options of the derivation `judge`."""

    instruction: str = "Was this correct? Answer yes or no."
    """What is asked below the transcript; the answer is to be the word yes or no."""
    success_threshold: float = 1.0
    """A rollout was correct if its reward is at least this."""
    max_transcript_chars: int = Field(4000, ge=LEAST_BUDGET)
    """A longer transcript is shortened to this, in the middle of its messages; at least 200."""


class JudgeTranscript(Derivation):
    """Shows the transcript of a finished rollout and asks whether it was correct; right is the verdict that agrees with
    the reward that the rollout got. As many correct rollouts are offered as others, so that no one verdict pays."""

    name = "judge"
    Config = JudgeConfig

    def anchors(self, record: Mapping[str, Any], seed: int) -> list[Anchor]:
        """None for a rollout that was not scored: nobody knows whether it was correct."""
        return [] if original_reward(record) is None else [Anchor()]

    def prompt(self, record: Mapping[str, Any], anchor: Anchor) -> list[Message]:
        shown = transcript(conversation(record, anchor.node), self.config.max_transcript_chars)
        return [{"role": "user", "content": f"{shown}\n\n{self.config.instruction}"}]

    def label(self, reward: float) -> str:
        return YES if reward >= self.config.success_threshold else NO

    def target(self, record: Mapping[str, Any], anchor: Anchor) -> str | None:
        reward = original_reward(record)
        return None if reward is None else self.label(reward)

    def score(self, task: Task, trace: Trace) -> Verdict:
        """1 for the right verdict, 0 for the other and for none."""
        target = task.targets[self.name]
        if target not in (YES, NO):
            return Verdict(None, state="unknown", detail=f"the target of 'judge' must be yes or no, not {target!r:.40}")
        said = verdict(trace.completion)
        return Verdict(float(said == target), {"parsed": float(said is not None)})


def verdict(answer: str) -> str | None:
    """The last verdict in an answer; a line that quotes both words repeats the question and is none."""
    for line in reversed(answer.splitlines()):
        words: set[str] = {word.lower() for word in _WORDS.findall(line)}
        if len(words) == 1:
            return words.pop()
    return None
