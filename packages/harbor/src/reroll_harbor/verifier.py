"""The verifier: what Harbor's verifier found, as a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from reroll.api import Config, Task, Trace, Verdict, Verifier, one_line


class HarborVerifierConfig(Config):
    reward_key: str | None = Field(None, min_length=1)
    """Which of the rewards that a task's tests give is the score; by default `reward`, or where no reward is named so
    the mean of all."""


class HarborVerifier(Verifier):
    """The score is the reward that the harness `harbor` found when it had Harbor run the task's tests; all rewards are
    its components."""

    name = "harbor"
    Config = HarborVerifierConfig

    def score(self, task: Task, trace: Trace) -> Verdict:
        found = trace.info.get("harbor")
        rewards = found.get("rewards") if isinstance(found, Mapping) else None
        if not isinstance(rewards, Mapping) or not rewards:
            return Verdict(None, state="unknown", detail="the trace has no rewards of the harness 'harbor'")
        for name, value in rewards.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                return Verdict(None, state="unknown", detail=f"reward {name!r} is {one_line(repr(value))}, no number")
        components = {str(name): float(value) for name, value in rewards.items()}
        key = self.config.reward_key
        if key is not None and key not in components:
            there = ", ".join(sorted(components))
            return Verdict(None, components, "unknown", f"reward_key = {key!r} is none of the rewards: {there}")
        mean = math.fsum(components.values()) / len(components)
        return Verdict(components[key] if key is not None else components.get("reward", mean), components)

    def check_target(self, target: Any) -> str | None:
        named = isinstance(target, Mapping) and all(isinstance(target.get(key), str) for key in ("path", "digest"))
        return None if named else "it must be a table with path and digest of a task directory"
