"""How derived tasks are run and judged: as their sources were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from reroll.api import (
    Config,
    Harness,
    Judge,
    RunFile,
    Selection,
    Task,
    TaskError,
    TaskSet,
    Verifier,
    task_from_record,
)
from reroll.replay.records import is_derived, stamp
from reroll.replay.source import SourceError, SourceRun
from reroll.tasks.config import DataSection
from reroll.tasks.installed import InstalledTools
from reroll.tasks.toolbox import Toolbox

Manner = Mapping[str, Any]
"""What a derived task is run with, as JSON, saved with it so that a derivation of it is run alike: `env_name` of the
original task, `harness`, `stop`, `stop_token_ids`. Empty where `inner` is given: then this run decides."""


class SavedManner(Config):
    """What a record may say of it; the run file's own bounds."""

    env_name: str | None
    harness: Selection
    stop: list[Annotated[str, Field(min_length=1)]]
    stop_token_ids: list[Annotated[int, Field(ge=0)]]


class Conduct:
    """What a replay task set delegates.

    Args:
        source: the run whose rollouts they are; None where `inner`, or the derivation itself, stands for it.
        inner: the task set that the run file names.
        judges: verifiers that the run file does not list; None where its own judge.
        own_verifiers: those of the run file.
    """

    def __init__(
        self,
        run: RunFile,
        *,
        source: SourceRun | None,
        inner: TaskSet | None,
        judges: dict[str, Judge] | None,
        own_verifiers: Mapping[str, Verifier],
    ) -> None:
        self.source = source
        self.inner = inner
        self.judges = judges
        self._run = run
        self._verifiers = own_verifiers if judges is None else {name: judge.verifier for name, judge in judges.items()}
        self._task_sets: dict[str, TaskSet | None] = {}
        self._harnesses: dict[str, Harness] = {}
        self._toolbox = Toolbox(InstalledTools(run, run.get(DataSection).tools))

    def manner(self, record: Mapping[str, Any]) -> Manner:
        """How the conversation of a record was had, and is to go on; ValueError where the record says it wrongly."""
        if self.source is None:
            return {}
        if is_derived(record):
            said = record["task"].get("metadata")
            if isinstance(said, Mapping) and isinstance(said.get("replay"), Mapping) and said["replay"]:
                SavedManner.model_validate(said["replay"])
                return dict(said["replay"])
        found = self.source.find(stamp(record).env_name)
        harness = self.source.harness(found)
        return {
            "env_name": found.name if found else None,
            "harness": {"name": harness.name, **harness.options},
            "stop": list(self.source.rollout.stop),
            "stop_token_ids": list(self.source.rollout.stop_token_ids),
        }

    def run_as(self, manner: Manner) -> dict[str, Any]:
        """The fields of a binding."""
        if not manner:
            return {}
        return {
            "harness": self._harness(manner["harness"]),
            "stop": tuple(manner["stop"]),
            "stop_token_ids": tuple(manner["stop_token_ids"]),
        }

    def recover(self, saved: Mapping[str, Any], manner: Manner) -> Task:
        """The original task, as the source's own task set or `inner` knows it; TaskError where it cannot be judged."""
        task_set = self.inner or self._task_set(manner.get("env_name"))
        task = task_set.recover(saved) if task_set is not None else task_from_record(saved)
        for name, target in task.targets.items():
            if name not in self._verifiers:
                listed = ", ".join(sorted(self._verifiers)) or "none"
                raise TaskError(f"its task is for the verifier {name!r}; there are {listed}")
            if why := self._verifiers[name].check_target(target):
                raise TaskError(f"target {target!r:.60} of {name!r} can never be judged: {why}")
        self._toolbox.of(task)
        return task

    def _task_set(self, env_name: str | None) -> TaskSet | None:
        if self.source is None:
            return None
        source = self.source.find(env_name)
        if source is None:
            return None
        if source.name not in self._task_sets:
            # Tasks of several sets were saved as what they are, whichever of them each one is of.
            of = self.source.selections(source)
            one = len(of) == 1 and not self.source.is_lazy(source)
            self._task_sets[source.name] = self._run.make("task_sets", of[0]) if one else None
        return self._task_sets[source.name]

    def _harness(self, said: Any) -> Harness:
        key = repr(said)
        if key not in self._harnesses:
            harness: Harness = self._run.make("harnesses", Selection.model_validate(said))
            if not harness.resumable:  # a source of this run file's is refused before; a record may name any
                raise TaskError(f"the harness {harness.name!r} cannot begin in the middle of a conversation")
            self._harnesses[key] = harness
        return self._harnesses[key]


def merged(judges: Mapping[str, Judge], more: Mapping[str, Judge], where: str) -> dict[str, Judge]:
    """The judges of a chain's links; SourceError where two of a name differ, since targets name them by it."""
    for name, judge in more.items():
        known = judges.get(name)
        same = known and type(known.verifier) is type(judge.verifier) and known.verifier.config == judge.verifier.config
        if known and not (same and known.weight == judge.weight):
            raise SourceError(
                f"the verifier {name!r} of {where} has other options or another weight than that of the rollouts it "
                "replays in turn: they cannot be told apart; leave the replay source out of source_envs, or set inner"
            )
    return {**judges, **more}
