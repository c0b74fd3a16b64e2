"""Putting the parts of a generation together from its run file, and taking them down again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from reroll.api import Engine, Placement, PromptFilter, RunContext, Seeds, WorkerDied
from reroll.caches.compilers import held_cache
from reroll.caches.config import CompilerCacheSection
from reroll.config import LoadedRunFile
from reroll.config.atomic import write_whole
from reroll.generation.config import GenerationSection
from reroll.generation.display import GenerationDisplay
from reroll.generation.identity import make_generation_protocol, sampling_of
from reroll.generation.protocol import GenerationProtocol, Shard
from reroll.generation.recording import TaskRecorder
from reroll.generation.session import GenerationSession
from reroll.generation.slots import Slots
from reroll.generation.states import TrialStates
from reroll.generation.store import JOURNAL, read_journal
from reroll.generation.tasklist import TaskList, make_task_list, named_positions
from reroll.generation.trials import TrialRunner
from reroll.generation.work_left import WorkLeft
from reroll.generation.writing import ResultsWriter
from reroll.launch.identity import make_context
from reroll.launch.start import Start
from reroll.models.config import ModelSection
from reroll.models.files import ModelFiles, resolve_model
from reroll.parts import engine_class, engine_context, make_maker, make_prompt_filters
from reroll.placement.config import PlacementSection
from reroll.publication.frozen import FrozenWeights
from reroll.publication.recovery import Recovery
from reroll.reporting.config import RUN_FILE
from reroll.rollouts.admission import GroupAdmission
from reroll.rollouts.config import RolloutSection, seeds
from reroll.rollouts.events import GroupEvents
from reroll.rollouts.scoring.contract import kind_of
from reroll.rollouts.scoring.scorer import Scorer
from reroll.serving.config import ServingSection
from reroll.serving.environment import engine_environment
from reroll.serving.router import LeastOutstandingTokensRouter
from reroll.sources import TaskSets
from reroll.tasks.render import Renderer
from reroll.workers.together import together, uninterrupted


@dataclass(frozen=True)
class Measured:
    """What is to be measured, and with what: everything that is known before anything is started.

    Attributes:
        files: of the model.
    """

    files: ModelFiles
    renderer: Renderer
    filters: dict[str, PromptFilter]
    task_sets: TaskSets
    tasks: TaskList
    protocol: GenerationProtocol


def measure(run: LoadedRunFile, shard: Shard | None, warn: Callable[[str], None]) -> Measured:
    """Reads model files and tasks."""
    files = resolve_model(run.get(ModelSection).path)
    renderer = Renderer(files, run.get(ModelSection).chat_template_text())
    filters = make_prompt_filters(run, warn)
    task_sets = TaskSets(run, None, warn, evaluation=False)
    tasks = make_task_list(run, task_sets, files)
    named = run.get(GenerationSection).instances
    instances = named_positions(named, tasks) if named is not None else None
    protocol = make_generation_protocol(run, files, renderer, tasks, filters, shard, instances)
    return Measured(files, renderer, filters, task_sets, tasks, protocol)


@asynccontextmanager
async def open_generation(
    run: LoadedRunFile,
    measured: Measured,
    start: Start,
    states: TrialStates,
    display: GenerationDisplay,
    on_death: Callable[[WorkerDied], None],
) -> AsyncIterator[GenerationSession]:
    """Starts engines and scoring for what is left to do, and ends them all.

    Args:
        states: how the trials stand that are on disk.
        on_death: called for each worker that ends by itself, also while nothing waits for it.
    """
    section, rollout, output = run.get(GenerationSection), run.get(RolloutSection), start.output
    protocol, filters = measured.protocol, measured.filters
    context = _write_context(run, measured, start)
    parts = AsyncExitStack()
    try:
        events = GroupEvents([given.cls for given in run.plugins.all("record_writers").values()], run, display.line)
        parts.callback(events.close)
        for prompt_filter in filters.values():
            prompt_filter.open(context)  # before anything is begun, since it may refuse the run
        events.open(context)
        parts.enter_context(held_cache(run.get(CompilerCacheSection), [engine_environment(run)]))
        placement: Placement = run.make("placements", run.get(PlacementSection).backend)
        placement.on_death = on_death
        parts.push_async_callback(placement.close)
        scorer = Scorer(measured.task_sets.verifiers, rollout.scoring, output / "logs", display.warn)
        parts.push_async_callback(scorer.close)
        scorer.pool.begin()  # beside the engines, which take seconds as well
        engines = await _start_engines(run, placement, measured.files, output, display.warn)
        for engine in engines:
            parts.push_async_callback(engine.close)
        router = LeastOutstandingTokensRouter(engines)
        serving = run.get(ServingSection)
        weights = FrozenWeights(engines, router, serving.publication_timeout)
        await weights.begin()
        maker = make_maker(run, measured.renderer, router, GroupAdmission(), scorer)
        compared = any(kind_of(type(item.verifier), item.distribution) == "group" for item in scorer.verifiers.values())
        writer = ResultsWriter(output, section.layout)
        parts.callback(writer.close)
        yield GenerationSession(
            left=WorkLeft(protocol, measured.tasks, states, measured.renderer, filters, together=compared),
            states=states,
            writer=writer,
            runner=TrialRunner(maker, section.pass_reward, section.max_retries),
            slots=Slots(max(1, section.n_concurrent // (protocol.n_trials if compared else 1))),
            recovery=Recovery(
                weights,
                router,
                most=serving.engine_restarts,
                timeout=serving.recovery_timeout,
                warn=display.warn,
            ),
            display=display,
            recorder=_recorder(run, events, output, protocol, states) if events.recording else None,
        )
    finally:
        await uninterrupted(parts.aclose())


def _write_context(run: LoadedRunFile, measured: Measured, start: Start) -> RunContext:
    """Says in the folder what is run: the run file as it was resolved, and the context."""
    context = make_context(
        run,
        measured.files,
        measured.renderer,
        start,
        Seeds(*seeds(run)),
        measured.filters,
        source="generate",
        sampling=sampling_of(run),
    )
    write_whole(start.output / RUN_FILE, tomli_w.dumps(run.to_toml()))
    write_whole(start.output / "context.json", json.dumps(context.to_json(), indent=2) + "\n")
    return context


def _recorder(
    run: LoadedRunFile,
    events: GroupEvents,
    output: Path,
    protocol: GenerationProtocol,
    states: TrialStates,
) -> TaskRecorder:
    filters = [run.make("group_filters", item) for item in run.get(RolloutSection).group_filters]
    before = read_journal(output, lambda text: None) if (output / JOURNAL).exists() else ()
    kept = [entry for entry in before if entry.final and states.missing(entry.position)]
    return TaskRecorder(events, filters, output, protocol.n_trials, kept)


async def _start_engines(
    run: LoadedRunFile, placement: Placement, files: ModelFiles, output: Path, warn: Callable[[str], None]
) -> list[Engine]:
    """All of them load the model, which takes seconds: at once."""
    cls, config = engine_class(run)
    count = run.get(ServingSection).num_engines
    contexts = [engine_context(run, placement, files, output, number, warn, False) for number in range(count)]
    await placement.devices()
    await placement.prepare([spec for context in contexts for spec in cls.worker_specs(config, context)])
    return list(await together(cls.start(config, context) for context in contexts))
