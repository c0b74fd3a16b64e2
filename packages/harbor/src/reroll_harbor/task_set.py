"""The task set: a directory of tasks in Harbor's layout."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from reroll.api import Config, Message, Problem, RunFile, Selection, Task, TaskError, TaskSet
from reroll_harbor.bash import Bash
from reroll_harbor.layout import TaskDirectory, digest_of, find_tasks, read_config, read_task, task_name

WITHOUT_ENVIRONMENT = ("single_turn", "tool_loop")
"""Harnesses that would answer such a task without the environment that it is about."""


class HarborTasksConfig(Config):
    path: Path
    """A task directory (`task.toml`, `instruction.md`, `environment`, `tests`), or a directory of them, up to two
    levels deep."""
    system_prompt: str | None = Field(None, min_length=1)
    """Stands before the instruction as a system message."""


class HarborTasks(TaskSet):
    """One task a directory, in order of their names. Directories are found when the set is opened and read when their
    task is asked for."""

    name = "harbor"
    container = True
    Config = HarborTasksConfig
    config: HarborTasksConfig

    @classmethod
    def problems(cls, config: Any, run: RunFile, key: str) -> Iterator[Problem]:
        found = selected_harness(run, key)
        if found is not None and found[1].name in WITHOUT_ENVIRONMENT:
            yield Problem(
                found[0],
                f"{found[1].name!r} starts no environment, which tasks of the task set 'harbor' need",
                'set harness = "harbor"',
            )

    def __len__(self) -> int:
        return len(self._folders)

    def task(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        read = read_task(self._folders[index])
        first = self._names.get(read.name, index)
        if first != index:
            raise TaskError(
                f"{self._folders[index]}: is named {read.name!r}, as {self._folders[first]} is; give it another name "
                "in [task]"
            )
        return Task(
            prompt=self._prompt(read),
            targets={self.name: {"path": str(read.path), "digest": self._digest(index)}},
            source_dataset=read.source or self._dataset,
            source_row=index,
            prepared_sample_id=read.name,
            tools=[Bash().schema()],
            metadata={"agent_timeout": read.agent_timeout, "verifier_timeout": read.verifier_timeout},
        )

    def fingerprint(self) -> str:
        """SHA-256 over the contents of all files and the prompts, wherever the directories are."""
        digest = hashlib.sha256()
        for index in range(len(self)):
            task = self.task(index)
            digest.update(json.dumps([task.key, task.prompt, self._digest(index)]).encode())
        return digest.hexdigest()

    @cached_property
    def _folders(self) -> list[Path]:
        return find_tasks(self.config.path)

    @property
    def _dataset(self) -> str:
        """The directory that the tasks are in."""
        path = self.config.path.resolve()
        return path.parent.name if self._folders == [self.config.path] else path.name

    @cached_property
    def _names(self) -> dict[str, int]:
        """Name → the first task of that name. What cannot be read is told when it is asked for."""
        names: dict[str, int] = {}
        for index, folder in enumerate(self._folders):
            try:
                names.setdefault(task_name(folder, read_config(folder)), index)
            except TaskError:
                continue
        return names

    @cached_property
    def _digests(self) -> dict[int, str]:
        return {}

    def _digest(self, index: int) -> str:
        """Files are read once: a trial finds out whether they are still the same."""
        if index not in self._digests:
            self._digests[index] = digest_of(self._folders[index])
        return self._digests[index]

    def _prompt(self, read: TaskDirectory) -> list[Message]:
        before = [{"role": "system", "content": self.config.system_prompt}] if self.config.system_prompt else []
        return [*before, {"role": "user", "content": read.instruction}]


def selected_harness(run: RunFile, key: str) -> tuple[str, Selection] | None:
    """Dotted key and selection of what runs the task set at `key`; None where it stands in no place that has one."""
    item = re.fullmatch(r"(data\.sources|eval\.sets)\[(\d+)\]\.task_set", key)
    if item is None and key != "data.task_set":
        return None
    own = run.value(item[1])[int(item[2])].harness if item else None
    if item and own is not None:
        return f"{item[1]}[{item[2]}].harness", own
    return "rollout.harness", run.value("rollout.harness")
