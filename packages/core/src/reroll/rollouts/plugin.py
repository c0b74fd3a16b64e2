"""What the room registers."""

from __future__ import annotations

from reroll.api import ConfigSection, GroupFilter, Harness, RecordWriter, Verifier, hookimpl


@hookimpl
def reroll_config_sections() -> list[type[ConfigSection]]:
    from reroll.rollouts.async_config import AsyncSection
    from reroll.rollouts.config import EvalSection, RolloutSection
    from reroll.rollouts.debug_config import DebugSection

    return [RolloutSection, AsyncSection, EvalSection, DebugSection]


@hookimpl
def reroll_harnesses() -> list[type[Harness]]:
    from reroll.rollouts.harnesses import SingleTurn
    from reroll.rollouts.tool_loop import ToolLoop

    return [SingleTurn, ToolLoop]


@hookimpl
def reroll_group_filters() -> list[type[GroupFilter]]:
    from reroll.rollouts.filters import PassRate, ZeroVariance

    return [ZeroVariance, PassRate]


@hookimpl
def reroll_record_writers() -> list[type[RecordWriter]]:
    from reroll.rollouts.timing import SiblingTiming

    return [SiblingTiming]


@hookimpl
def reroll_verifiers() -> list[type[Verifier]]:
    from reroll.rollouts.judge import JudgeVerifier
    from reroll.rollouts.verifiers import ExactMatch, Regex

    return [ExactMatch, Regex, JudgeVerifier]
