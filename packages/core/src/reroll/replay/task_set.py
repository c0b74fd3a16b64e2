"""The task set of a derivation: saved rollouts, bound to tasks when they are dispatched."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, create_model

from reroll.api import (
    Anchor,
    Binding,
    Config,
    Derivation,
    Hook,
    Judge,
    PluginError,
    Problem,
    RunFile,
    Selection,
    Task,
    TaskError,
    TaskSet,
)
from reroll.replay.buffer import CAPACITY, ReplayBuffer
from reroll.replay.calls import check
from reroll.replay.conduct import Conduct, merged
from reroll.replay.folders import rollouts_folder, run_folder
from reroll.replay.judging import judges_itself, own_judge
from reroll.replay.records import MOST_NESTING, innermost, nested_too_deeply, number_from
from reroll.replay.source import THIS_RUN, SourceError, SourceRun, read_source_run, this_run
from reroll.replay.steps import Handle
from reroll.reporting.config import RUN_FILE
from reroll.tasks.config import DataSection, DataSource
from reroll.tasks.index import bases
from reroll.traces.names import ROLLOUTS

SELF = "self"
REDRAWS = 32
"""Candidates that are drawn in place of ones that turn out to be of no use, for one dispatch."""


class ReplayConfig(Config):
    buffer_dir: Literal["self"] | Path
    """The rollouts to replay: a run's folder, or "self" for those of this run as it goes on."""
    inner: Annotated[Selection | None, Hook("task_sets")] = None
    """The task set that the rollouts' tasks are of, judged by this run's verifiers. By default the source's own task
    set, verifiers and harness, from the run file beside its rollouts; required where there is none."""
    source_envs: Annotated[list[str], Field(min_length=1)] | None = None
    """Names of the data sources whose rollouts are replayed; a replay source among them makes chains. By default all
    that are no replay themselves."""
    online: bool = False
    """Go on looking for new steps, of a run that is still going on; true for "self"."""
    capacity: int = Field(CAPACITY, gt=0)
    """Candidates that are kept, those of the newest steps."""
    allow_container: bool = False
    """Replay tasks that run in containers although a replayed one begins in a fresh container."""
    seed: int = 0
    """Which candidates are drawn, and where in a rollout tasks start, beside `data.seed`."""
    empty_timeout: float = Field(60.0, ge=0)
    """Online: seconds after which a dispatch fails where there is nothing to replay yet."""
    num_tasks: int = Field(1, gt=0)
    """Online: tasks that the set counts as, each another draw; an evaluation set asks all of them."""


class ReplayTasks(TaskSet):
    """Tasks that a derivation makes of saved rollouts; `replay_tasks` makes the class for one."""

    lazy = True
    derivation_class: ClassVar[type[Derivation]]

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.derivation = derivation_of(type(self), self.config)
        self.patience = self.config.empty_timeout if self.online else 0.0  # offline nothing will be there later
        self._buffer: ReplayBuffer | None = None
        self._conduct: Conduct | None = None
        self._warned: set[str] = set()

    @classmethod
    def problems(cls, config: Any, run: RunFile, key: str) -> Iterator[Problem]:
        own = config.buffer_dir == SELF
        if not own and not config.online and not rollouts_folder(config.buffer_dir).is_dir():
            remedy = "give a run's folder, or set online = true for one that is about to begin"
            yield Problem(f"{key}.buffer_dir", f"{config.buffer_dir} is no folder", remedy)
            return
        for name, why in (("num_tasks", "saved rollouts are counted"), ("empty_timeout", "nothing comes to be later")):
            default = ReplayConfig.model_fields[name].default
            if getattr(config, name) != default and not (own or config.online):
                yield Problem(f"{key}.{name}", f"does nothing: {why}", "leave it out, or set online = true")
        if config.inner and judges_itself(cls.derivation_class):
            yield Problem(f"{key}.inner", f"does nothing: {cls.name!r} judges answers itself", "leave it out")
        try:
            of = bases(config.inner, run) if config.inner else []
        except TaskError as error:
            yield Problem(f"{key}.inner", str(error))
            return
        inner = [cast(type[TaskSet], run.component("task_sets", item.name)) for item in of]
        if any(task_set.lazy for task_set in inner):
            remedy = "name the task set that the rollouts' first tasks are of"
            yield Problem(f"{key}.inner", f"{config.inner.name!r} has no tasks of its own", remedy)
            return
        giving = _giving(run.get(DataSection).all_sources(), run) if own else set()
        if own and not giving:
            yield Problem(
                f"{key}.buffer_dir", 'is "self", but every data source replays this run', "add another source"
            )
        elif own and config.source_envs and not giving.intersection(config.source_envs):
            yield Problem(
                f"{key}.source_envs",
                f"{', '.join(config.source_envs)} can never have anything: each waits for what is made of itself",
                f"name a source that has tasks of its own: {', '.join(sorted(giving))}",
            )
        try:
            conduct = find_conduct(cls, config, run)
            if conduct.source is not None:
                yield from conduct.source.problems(key, config.source_envs, config.allow_container)
                return
        except SourceError as error:
            yield Problem(f"{key}.inner", str(error))
            return
        contained = [task_set for task_set in inner if task_set.container]
        if contained and not config.allow_container:
            yield Problem(
                f"{key}.allow_container",
                f"tasks of {contained[0].name!r} run in containers, whose state is not saved with a rollout: a "
                "replayed one begins in a fresh container",
                "set allow_container = true if that does no harm",
            )

    def open(self, run: RunFile, output: Path | None, seed: int) -> None:
        self._conduct = find_conduct(type(self), self.config, run)
        if self._conduct.inner is not None:
            self._conduct.inner.warn = self.warn
            self._conduct.inner.open(run, output, seed)
        if self.config.buffer_dir != SELF:
            folder = self.config.buffer_dir
        elif output is not None:
            folder = output / ROLLOUTS
            if not run.value("async.fully_async"):
                self.patience = 0.0  # a run that takes turns makes no step while it waits for one
        else:
            return  # there is no run, and nothing to look at: whoever asks for a task is told so
        self._buffer = ReplayBuffer(
            folder,
            self.derivation,
            source_envs=self.config.source_envs,
            capacity=self.config.capacity,
            online=self.online,
            seed=number_from("replay", self.name, seed, self.config.seed),
            warn=self.warn,
        )

    @property
    def online(self) -> bool:
        return bool(self.config.online or self.config.buffer_dir == SELF)

    @property
    def buffer(self) -> ReplayBuffer:
        if self._buffer is None:
            raise TaskError(
                f"task set {self.name!r}: buffer_dir = {str(self.config.buffer_dir)!r} stands for the folder of the "
                "run, and there is no run here; name a run's folder"
            )
        return self._buffer

    def judges(self) -> Mapping[str, Judge] | None:
        assert self._conduct is not None, "open() comes first"
        return self._conduct.judges

    def __len__(self) -> int:
        return int(self.config.num_tasks) if self.online else len(self.buffer)

    def task(self, index: int) -> Task:
        """A stand-in."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return Task("", {}, self.name, index, str(index))

    def fingerprint(self) -> str:
        """Of what is offered; online, where that changes, of the options."""
        digest = hashlib.sha256()
        if self.online:
            digest.update(self.config.model_dump_json().encode())
        for index in range(0 if self.online else len(self)):
            handle = self.buffer.pick(index)
            assert handle is not None, "it is offered"
            digest.update(repr((handle.step, handle.offset, handle.source_id, handle.node)).encode())
        return digest.hexdigest()

    def bind(self, task: Task, request: int, tries: int = 0) -> Binding | None:
        """Online a uniform draw, offline the candidate of the stand-in's index; candidates that turn out to be of no
        use are discarded, and others drawn."""
        buffer = self.buffer
        buffer.refresh(force=not len(buffer))  # somebody waits for the first step
        for redraw in range(REDRAWS):
            if self.online:
                handle = buffer.draw(request * len(self) + task.source_row, tries * REDRAWS + redraw)
            else:
                handle = buffer.pick(task.source_row, tries + redraw)
            if handle is None:
                return None
            record = buffer.read(handle)
            if record is None:
                continue
            try:
                return self._binding(handle, record)
            except Exception as error:  # a derivation and a task set are anybody's code, and records anybody's data
                self._tell(
                    f"{handle.path}: rollout {handle.source_id} cannot be replayed: {error}", type(error).__name__
                )
                buffer.discard(handle)
        return None

    def _tell(self, text: str, kind: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self.warn(f"{text} (said once)")

    def _binding(self, handle: Handle, record: Mapping[str, Any]) -> Binding:
        assert self._conduct is not None, "open() comes first"
        anchor = Anchor(handle.node)
        messages = self.derivation.prompt(record, anchor)
        if why := check(messages):
            raise TaskError(f"the prompt that {self.name!r} makes of it: {why}")
        saved = record["task"]
        if nested_too_deeply([messages, saved]):
            raise TaskError(f"more than {MOST_NESTING} lists and tables are within each other in it")
        metrics = {"replay/source_step": float(handle.step)}
        if handle.reward is not None:
            metrics["replay/source_reward"] = handle.reward
        place = "end" if handle.node is None else str(handle.node)
        sample = f"{handle.source_id}@{place}"
        if judges_itself(self.derivation_class):
            target = self.derivation.target(record, anchor)
            task = Task(
                messages,
                {self.name: target},
                f"{self.name}:{handle.env_name or ''}",
                0,
                sample,
                source_id=handle.source_id,
                source_task=saved,
            )
            return Binding(task, metrics=metrics)
        manner = self._conduct.manner(record)
        original = self._conduct.recover(innermost(saved), manner)
        task = Task(
            messages,
            original.targets,
            f"{self.name}:{original.source_dataset}",
            original.source_row,
            sample,
            tools=original.tools,
            metadata={"replay": manner},
            source_id=handle.source_id,
            source_task=saved,
        )
        return Binding(task, original, metrics=metrics, **self._conduct.run_as(manner))


def replay_tasks(derivation: type[Derivation]) -> type[ReplayTasks]:
    """The task set of a derivation, for `reroll_task_sets`: selected by the derivation's name, with its options beside
    those of every replay."""
    clash = sorted(set(ReplayConfig.model_fields) & set(derivation.Config.model_fields))
    if clash:
        raise PluginError(f"derivation {derivation.name!r} has options that every replay has: {', '.join(clash)}")
    config = create_model(f"{derivation.__name__}Config", __base__=(ReplayConfig, derivation.Config))
    members = {
        "name": derivation.name,
        "derivation_class": derivation,
        "Config": config,
        "__doc__": derivation.__doc__,
        "__module__": derivation.__module__,
    }
    return type(f"{derivation.__name__}Tasks", (ReplayTasks,), members)


def derivation_of(cls: type[ReplayTasks], config: Any) -> Derivation:
    """The derivation with its part of the set's options."""
    own = cls.derivation_class.Config
    return cls.derivation_class(own(**{name: getattr(config, name) for name in own.model_fields}))


def _giving(sources: Sequence[DataSource], run: RunFile) -> set[str]:
    """Names of the data sources that can come to have something: those that do not replay the run itself, and those
    that replay one of them."""
    waiting: dict[str, list[str] | None] = {}
    for source in sources:
        cls: Any = run.component("task_sets", source.task_set.name)
        if issubclass(cls, ReplayTasks):
            config = cls.Config(**source.task_set.options)
            if config.buffer_dir == SELF:
                waiting[source.name] = config.source_envs
    giving = {source.name for source in sources} - waiting.keys()
    while more := {
        name for name, envs in waiting.items() if name not in giving and giving and (not envs or giving & set(envs))
    }:
        giving |= more
    return giving


def find_conduct(cls: type[ReplayTasks], config: ReplayConfig, run: RunFile) -> Conduct:
    """How the tasks of a configured set are run and judged; SourceError where that cannot be found."""
    verifiers = {item.name: run.make("verifiers", item) for item in run.get(DataSection).verifiers}
    if judges_itself(cls.derivation_class):
        judges = {cls.name: own_judge(derivation_of(cls, config), run.distribution("task_sets", cls.name))}
        return Conduct(run, source=None, inner=None, judges=judges, own_verifiers=verifiers)
    if config.inner is not None:
        inner = run.make("task_sets", config.inner)
        return Conduct(run, source=None, inner=inner, judges=None, own_verifiers=verifiers)
    folder = config.buffer_dir
    source = _saved_run(folder, run) if isinstance(folder, Path) else this_run(run)
    return Conduct(
        run,
        source=source,
        inner=None,
        judges=_judges(source, config.source_envs, run),
        own_verifiers=verifiers,
    )


def _saved_run(folder: Path, run: RunFile) -> SourceRun:
    source = read_source_run(run_folder(folder), run)
    if source is None:
        raise SourceError(
            f"is required: no {RUN_FILE} lies beside the rollouts in {folder}, so that nothing says what their tasks "
            "are and who judges them"
        )
    return source


def _judges(source: SourceRun, names: list[str] | None, run: RunFile) -> dict[str, Judge] | None:
    """The verifiers of the source, and of what its replay sources among `names` replay; None for the run's alone."""
    linked = _linked(source, names, run)
    if source.where == THIS_RUN and not linked:
        return None
    judges = source.judges()
    for further in linked:
        judges = merged(judges, further.judges(), source.where)
    return judges


def _linked(source: SourceRun, names: list[str] | None, run: RunFile) -> list[SourceRun]:
    """The other runs whose rollouts a chain may begin with, each once: runs may replay each other."""
    found: dict[str, SourceRun] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [(source, names)]
    while left:
        at, links = left.pop()
        key = at.where, frozenset(links or ())
        if key in seen:
            continue
        seen.add(key)
        if at.where != source.where:
            found.setdefault(at.where, at)
        for link in at.sources(links) if links else []:
            for cls, config in zip(at.task_set_classes(link), at.task_set_configs(link), strict=True):
                if issubclass(cls, ReplayTasks) and not judges_itself(cls.derivation_class) and config.inner is None:
                    own = config.buffer_dir == SELF
                    left.append((at if own else _saved_run(config.buffer_dir, run), config.source_envs))
    return list(found.values())
