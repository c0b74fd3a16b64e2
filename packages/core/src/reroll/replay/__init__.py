"""Saved rollouts become tasks: what every derivation shares, and what the author of one needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reroll.replay.calls import check, dangling, is_blank, normalised, orphans, tool_calls, without_dangling
from reroll.replay.forest import Forest, conversation
from reroll.replay.records import depth, innermost, is_derived, original_reward, stamp, usable

if TYPE_CHECKING:
    from reroll.replay.task_set import replay_tasks

__all__ = [
    "Forest",
    "check",
    "conversation",
    "dangling",
    "depth",
    "innermost",
    "is_blank",
    "is_derived",
    "normalised",
    "original_reward",
    "orphans",
    "replay_tasks",
    "stamp",
    "tool_calls",
    "usable",
    "without_dangling",
]


def __getattr__(name: str) -> Any:
    """`replay_tasks` needs the sections of the run file, which derivations do without."""
    if name == "replay_tasks":
        from reroll.replay.task_set import replay_tasks

        return replay_tasks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
