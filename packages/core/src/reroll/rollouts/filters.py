"""Built-in group filters."""

from __future__ import annotations

from reroll.api import Decision, Group, GroupFilter, PluginError


class ZeroVariance(GroupFilter):
    """Drops groups whose responses all have the same reward: their advantages are 0 and they teach nothing."""

    name = "zero_variance"

    def decide(self, group: Group) -> Decision:
        rewards = set(group.scored_rewards)
        if len(rewards) == 1:
            return Decision("filtered", f"zero_variance_{rewards.pop():g}")
        return Decision("passed")


def decide(group: Group, filters: list[GroupFilter]) -> Decision:
    """The first filter that does not pass the group decides; one with fewer than two scored responses is aborted."""
    if len(group.scored_rewards) < 2:
        scored, size = len(group.scored_rewards), len(group.traces)
        return Decision("aborted", f"{scored} of the group's {size} responses were scored")
    for group_filter in filters:
        try:
            decision = group_filter.decide(group)
        except Exception as error:
            raise PluginError(f"group filter {group_filter.name!r} raised {type(error).__name__}: {error}") from error
        if not isinstance(decision, Decision):
            raise PluginError(f"group filter {group_filter.name!r} returned {decision!r}; it must return a Decision")
        if decision.outcome != "passed":
            return decision
    return Decision("passed")
