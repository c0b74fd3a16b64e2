"""Built-in group filters."""

from __future__ import annotations

import asyncio

from pydantic import Field, model_validator

from reroll.api import Config, Decision, Group, GroupFilter, PluginError


class ZeroVariance(GroupFilter):
    """Drops groups whose responses all have the same reward: their advantages are 0 and they teach nothing."""

    name = "zero_variance"

    def decide(self, group: Group) -> Decision:
        rewards = set(group.scored_rewards)
        if len(rewards) == 1:
            return Decision("filtered", f"zero_variance_{rewards.pop():g}")
        return Decision("passed")


class PassRateConfig(Config):
    min_pass_rate: float = Field(0.1, ge=0, le=1)
    """Groups below it are too hard."""
    max_pass_rate: float = Field(0.9, ge=0, le=1)
    """Groups above it are too easy."""
    pass_reward: float = 1.0
    """A response passes with at least this reward."""

    @model_validator(mode="after")
    def _band(self) -> PassRateConfig:
        if self.min_pass_rate > self.max_pass_rate:
            raise ValueError(f"min_pass_rate = {self.min_pass_rate} is above max_pass_rate = {self.max_pass_rate}")
        return self


class PassRate(GroupFilter):
    """Keeps groups whose share of right responses lies within a band, its ends included."""

    name = "pass_rate"
    Config = PassRateConfig

    def decide(self, group: Group) -> Decision:
        rewards, config = group.scored_rewards, self.config
        rate = sum(reward >= config.pass_reward - 1e-9 for reward in rewards) / len(rewards)
        if rate < config.min_pass_rate:
            return Decision("filtered", f"pass_rate_below_{config.min_pass_rate:g}")
        if rate > config.max_pass_rate:
            return Decision("filtered", f"pass_rate_above_{config.max_pass_rate:g}")
        return Decision("passed")


OUTCOMES = ("passed", "filtered", "aborted")


def decide(group: Group, filters: list[GroupFilter]) -> Decision:
    """The first filter that does not pass the group decides; one with fewer than two scored responses is aborted."""
    if len(group.scored_rewards) < 2:
        scored, size = len(group.scored_rewards), len(group.traces)
        unknown = f"; {', '.join(group.unknown_verifiers)} cannot judge the task" if group.unknown_verifiers else ""
        return Decision("aborted", f"{scored} of the group's {size} responses were scored{unknown}")
    for group_filter in filters:
        try:
            decision = group_filter.decide(group)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            raise PluginError(f"group filter {group_filter.name!r} raised {type(error).__name__}: {error}") from error
        if not isinstance(decision, Decision) or decision.outcome not in OUTCOMES:
            raise PluginError(
                f"group filter {group_filter.name!r} returned {decision!r}; it must return a Decision: "
                f"{', '.join(OUTCOMES)}"
            )
        if decision.outcome != "passed":
            return decision
    return Decision("passed")
