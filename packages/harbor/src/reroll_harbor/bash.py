"""The one tool of a trial: commands in its environment."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reroll.api import Tool

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment

SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command with bash in the task's environment and gives its exit code and output. Each "
        "call begins in the task's working directory, with a shell of its own.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
            "additionalProperties": False,
        },
    },
}


class Bash(Tool):
    """What tasks offer. The harness `harbor` puts one with an environment in its place."""

    name = "bash"

    def schema(self) -> dict[str, Any]:
        return copy.deepcopy(SCHEMA)

    async def call(self, arguments: Mapping[str, Any]) -> str:
        raise RuntimeError("there is no environment to run commands in: they are the harness 'harbor''s to run")


class EnvironmentBash(Bash):
    """Runs commands in an environment of Harbor's.

    Args:
        seconds: that a command may take.

    Attributes:
        failure: what the environment raised where it did not run a command at all. It is no answer to the model: the
            trial is to end with it.
    """

    def __init__(self, environment: BaseEnvironment, seconds: float) -> None:
        super().__init__()
        self._environment = environment
        self._seconds = seconds
        self.failure: Exception | None = None

    async def call(self, arguments: Mapping[str, Any]) -> str:
        command = checked_command(arguments)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            result = await self._environment.exec(command, timeout_sec=math.ceil(self._seconds))
        except Exception as error:
            # Back ends say in different words that a command took too long, and none of them says it before.
            if loop.time() - begun >= self._seconds:
                raise TimeoutError(f"the command took longer than {self._seconds:g} seconds") from error
            self.failure = error
            raise
        return shown(result.return_code, result.stdout, result.stderr)


def checked_command(arguments: Mapping[str, Any]) -> str:
    command = arguments.get("command")
    unknown = sorted(set(arguments) - {"command"})
    if unknown:
        raise ValueError(f"argument {unknown[0]!r}: there is only 'command'")
    if not isinstance(command, str) or not command.strip():
        raise ValueError(f"argument 'command': {command!r:.60} is no command")
    if "\0" in command:
        raise ValueError("argument 'command': no command has a NUL character")
    return command


def shown(code: int, output: str | None, errors: str | None) -> str:
    """A command's result as the model reads it."""
    parts = [f"exit code {code}"]
    if output:
        parts.append(output.rstrip("\n"))
    if errors:
        parts.append(f"stderr:\n{errors.rstrip()}")
    return "\n".join(parts)
