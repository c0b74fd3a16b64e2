"""Parts that every kind of run is put together from, by its run file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reroll.api import Engine, EngineContext, Placement, PluginError, PromptFilter
from reroll.config import LoadedRunFile
from reroll.models.files import ModelFiles
from reroll.placement.with_environment import WithEnvironment
from reroll.rollouts.admission import GroupAdmission
from reroll.rollouts.config import RolloutSection, seeds
from reroll.rollouts.groups import GroupMaker
from reroll.rollouts.scoring.scorer import Scorer
from reroll.serving.config import ServingSection
from reroll.serving.environment import engine_environment
from reroll.serving.router import LeastOutstandingTokensRouter
from reroll.tasks.config import DataSection
from reroll.tasks.installed import InstalledTools
from reroll.tasks.render import Renderer
from reroll.tasks.toolbox import Toolbox


def make_prompt_filters(run: LoadedRunFile, warn: Callable[[str], None]) -> dict[str, PromptFilter]:
    """Those that the run file lists, then those that ask to be part of it, all of them prepared."""
    filters: dict[str, PromptFilter] = {
        item.name: run.make("prompt_filters", item) for item in run.get(DataSection).prompt_filters
    }
    for name, given in run.plugins.all("prompt_filters").items():
        if name in filters:
            continue
        try:
            made = given.cls.from_run(run)
        except Exception as error:
            raise PluginError(f"prompt filter {name!r} of {given.distribution} cannot be asked: {error}") from error
        if made is not None:
            filters[name] = made
    for prompt_filter in filters.values():
        prompt_filter.warn = warn
        prompt_filter.prepare()
    return filters


def make_maker(
    run: LoadedRunFile,
    renderer: Renderer,
    router: LeastOutstandingTokensRouter,
    admission: GroupAdmission,
    scorer: Scorer,
) -> GroupMaker:
    """What makes groups as the run file says: harness, tools, weights of verifiers."""
    rollout, data = run.get(RolloutSection), run.get(DataSection)
    return GroupMaker(
        harness=run.make("harnesses", rollout.harness),
        renderer=renderer,
        router=router,
        admission=admission,
        scorer=scorer,
        verifier_weights=data.weights(),
        failure_policy=rollout.failure_policy,
        rollout_seed=seeds(run)[2],
        toolbox=Toolbox(InstalledTools(run, data.tools)),
    )


def engine_class(run: LoadedRunFile) -> tuple[type[Engine], Any]:
    """The selected engine and its configuration."""
    selection = run.get(ServingSection).engine
    cls: Any = run.component("engines", selection.name)
    return cls, cls.Config(**selection.options)


def engine_context(
    run: LoadedRunFile,
    placement: Placement,
    files: ModelFiles,
    output: Path,
    number: int,
    warn: Callable[[str], None],
    share_devices: bool,
) -> EngineContext:
    """What engine `number` of the run is started with; see `EngineContext`."""
    name = f"engine-{number}"
    log = output / "logs" / f"{name}.log"
    own = WithEnvironment(placement, engine_environment(run))
    return EngineContext(name, files.directory, 0, own, log, number, run, share_devices, warn)
