"""The tools of a run, and which of them a task offers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reroll.api import Task, TaskError, Tool


class Toolbox:
    """Tools by the names that models call."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = tools

    def of(self, task: Task) -> dict[str, Tool]:
        """The tools that the task offers; TaskError for one that there is not."""
        found: dict[str, Tool] = {}
        for index, schema in enumerate(task.tools):
            name = tool_name(schema)
            if name is None:
                raise TaskError(f"task {task.key}: tools[{index}] has no name: {schema!r:.100}")
            if name not in self.tools:
                there = ", ".join(sorted(self.tools)) or "no tool at all"
                raise TaskError(
                    f"task {task.key} offers the tool {name!r}, which nothing registers (reroll_tools); there is: "
                    f"{there}"
                )
            found[name] = self.tools[name]
        return found


def tool_name(schema: Mapping[str, Any]) -> str | None:
    """The name in a tool's schema, with or without the `function` around it."""
    inner = schema.get("function", schema) if isinstance(schema, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) and name else None
