"""What the room registers."""

from __future__ import annotations

from reroll.api import ConfigSection, GroupFilter, Harness, Verifier, hookimpl


@hookimpl
def reroll_config_sections() -> list[type[ConfigSection]]:
    from reroll.rollouts.config import EvalSection, RolloutSection

    return [RolloutSection, EvalSection]


@hookimpl
def reroll_harnesses() -> list[type[Harness]]:
    from reroll.rollouts.harnesses import SingleTurn

    return [SingleTurn]


@hookimpl
def reroll_group_filters() -> list[type[GroupFilter]]:
    from reroll.rollouts.filters import ZeroVariance

    return [ZeroVariance]


@hookimpl
def reroll_verifiers() -> list[type[Verifier]]:
    from reroll.rollouts.verifiers import ExactMatch, Regex

    return [ExactMatch, Regex]
