"""The hooks. A plugin is a module, named by an entry point in the group `reroll`, that implements some.

Each hook gives a list of classes; none is instantiated until a run file selects it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    import typer

    from reroll.api.datasets import Dataset
    from reroll.api.derivations import Derivation
    from reroll.api.engines import Engine
    from reroll.api.filters import GroupFilter, PromptFilter
    from reroll.api.harnesses import Harness
    from reroll.api.launching import Launcher
    from reroll.api.placement import Placement
    from reroll.api.publication import PublicationMode, Transport
    from reroll.api.recipe import Advantage, Correction
    from reroll.api.records import RecordWriter
    from reroll.api.sections import ConfigSection
    from reroll.api.tasks import TaskSet, Tool
    from reroll.api.trackers import Tracker
    from reroll.api.verifiers import Verifier

PROJECT = "reroll"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def reroll_verifiers() -> list[type[Verifier]]:  # type: ignore[empty-body]
    """Classes that judge rollouts. Asked when rollouts are scored and by `reroll score`."""


@hookspec
def reroll_derivations() -> list[type[Derivation]]:  # type: ignore[empty-body]
    """Classes that turn saved rollouts into tasks. Asked for by replay task sets, and by `reroll replay inspect`."""


@hookspec
def reroll_record_writers() -> list[type[RecordWriter]]:  # type: ignore[empty-body]
    """Classes that keep every scored group and what became of it. Asked when a run starts."""


@hookspec
def reroll_publication_modes() -> list[type[PublicationMode]]:  # type: ignore[empty-body]
    """Classes that decide how engines take new weights. Selected by `serving.publication_mode`."""


@hookspec
def reroll_transports() -> list[type[Transport]]:  # type: ignore[empty-body]
    """Classes that carry tensors to engines. Selected by `serving.transport`."""


@hookspec
def reroll_engines() -> list[type[Engine]]:  # type: ignore[empty-body]
    """Classes that generate. Selected by `serving.engine`."""


@hookspec
def reroll_placements() -> list[type[Placement]]:  # type: ignore[empty-body]
    """Classes that start worker processes. Selected by `placement.backend`."""


@hookspec
def reroll_launchers() -> list[type[Launcher]]:  # type: ignore[empty-body]
    """Classes that start a whole run where it goes on by itself. Selected by `launch.backend`."""


@hookspec
def reroll_harnesses() -> list[type[Harness]]:  # type: ignore[empty-body]
    """Classes that turn a task into a conversation. Selected by `rollout.harness`."""


@hookspec
def reroll_task_sets() -> list[type[TaskSet]]:  # type: ignore[empty-body]
    """Classes that give tasks. Selected by `data.task_set` and by evaluation sets."""


@hookspec
def reroll_datasets() -> list[type[Dataset]]:  # type: ignore[empty-body]
    """Data sets by name. Asked for by `reroll data prepare`, which makes a task set of one."""


@hookspec
def reroll_tools() -> list[type[Tool]]:  # type: ignore[empty-body]
    """Functions that a model may call. Asked for by their name when a task offers one; `data.tools` gives options."""


@hookspec
def reroll_prompt_filters() -> list[type[PromptFilter]]:  # type: ignore[empty-body]
    """Classes that skip prompts before generation. Selected by `data.prompt_filters`."""


@hookspec
def reroll_group_filters() -> list[type[GroupFilter]]:  # type: ignore[empty-body]
    """Classes that decide about scored groups. Selected by `rollout.group_filters`."""


@hookspec
def reroll_advantages() -> list[type[Advantage]]:  # type: ignore[empty-body]
    """Rewards of a group → advantages. Selected by `objective.advantage_estimator`."""


@hookspec
def reroll_corrections() -> list[type[Correction]]:  # type: ignore[empty-body]
    """Off-policy corrections. Selected by `objective.correction`."""


@hookspec
def reroll_trackers() -> list[type[Tracker]]:  # type: ignore[empty-body]
    """Sinks of metrics. Selected by `trackers.names`."""


@hookspec
def reroll_config_sections() -> list[type[ConfigSection]]:  # type: ignore[empty-body]
    """Tables of the run file."""


@hookspec
def reroll_commands() -> list[tuple[str, typer.Typer]]:  # type: ignore[empty-body]
    """Command groups, as `(name, Typer application)`: `reroll NAME …`."""
