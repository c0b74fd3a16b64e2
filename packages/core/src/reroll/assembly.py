"""Putting a run's parts together from its run file, and taking them down again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import tomli_w

from reroll.accounts import Accounts
from reroll.api import (
    Engine,
    Placement,
    RunContext,
    Seeds,
    WorkerDied,
    counted,
)
from reroll.caches.compilers import held_cache
from reroll.caches.config import CompilerCacheSection
from reroll.checkpoints.config import CheckpointSection
from reroll.checkpoints.saver import Checkpointer
from reroll.checkpoints.state import Identity
from reroll.checkpoints.store import FOLDER, CheckpointStore
from reroll.config import LoadedRunFile
from reroll.config.atomic import write_whole
from reroll.launch.identity import make_context
from reroll.launch.start import Resumed, Start
from reroll.models.config import ModelSection
from reroll.models.files import ModelFiles, resolve_model
from reroll.parts import engine_class, engine_context, make_maker, make_prompt_filters
from reroll.placement.colocation import HeldAdmission, TakingTurns
from reroll.placement.config import PlacementSection
from reroll.placement.with_environment import WithEnvironment
from reroll.plan import (
    collection_size,
    constant_length,
    correction,
    global_batch_size,
    scoring_reasons,
    total_steps,
)
from reroll.publication.publisher import Publisher
from reroll.publication.recovery import Recovery
from reroll.reporting.config import RUN_FILE, OutputSection, TrackersSection
from reroll.reporting.display import Display
from reroll.reporting.summary import Summary
from reroll.reporting.trackers import Trackers
from reroll.rollouts.admission import GroupAdmission
from reroll.rollouts.async_config import AsyncSection
from reroll.rollouts.buffer import GroupBuffer
from reroll.rollouts.config import EvalSection, RolloutSection, seeds
from reroll.rollouts.debug_config import DebugSection
from reroll.rollouts.events import GroupEvents
from reroll.rollouts.groups import GroupMaker, GroupPlan
from reroll.rollouts.producer import Producer
from reroll.rollouts.replayed import SavedCollections
from reroll.rollouts.scoring.scorer import Scorer
from reroll.serving.config import ServingSection
from reroll.serving.environment import engine_environment
from reroll.serving.router import LeastOutstandingTokensRouter
from reroll.session import Session
from reroll.sources import TaskSets, make_cursor, make_evaluators, make_plans
from reroll.tasks.cursor import Cursor
from reroll.tasks.mixture import Mixture
from reroll.tasks.render import Renderer
from reroll.training.config import ObjectiveSection, TrainerSection
from reroll.training.environment import trainer_environment
from reroll.training.trainer import Trainer, start_trainer, trainer_specs
from reroll.workers.together import together, uninterrupted


@asynccontextmanager
async def open_session(
    run: LoadedRunFile,
    start: Start,
    display: Display,
    summary: Summary,
    on_death: Callable[[WorkerDied], None] | None = None,
) -> AsyncIterator[Session]:
    """Starts trainer, engines and scoring, goes on from a checkpoint where the start has one, and ends them all.

    Args:
        on_death: called for each worker that ends by itself, also while nothing waits for it.
    """
    rollout, output = run.get(RolloutSection), start.output
    replayed = run.get(DebugSection).load_rollouts
    run_seed, data_seed, rollout_seed = seeds(run)
    files = resolve_model(run.get(ModelSection).path)
    renderer = Renderer(files, run.get(ModelSection).chat_template_text())
    filters = make_prompt_filters(run, display.warn)
    context = make_context(run, files, renderer, start, Seeds(run_seed, data_seed, rollout_seed), filters)
    write_whole(output / RUN_FILE, tomli_w.dumps(run.to_toml()))
    (output / "context.json").write_text(json.dumps(context.to_json(), indent=2) + "\n", "utf-8")
    parts = AsyncExitStack()
    try:
        sinks = [run.make("trackers", item) for item in run.get(TrackersSection).names]
        trackers = Trackers(sinks, display.warn, run.get(OutputSection).rollout_sample_rate)
        parts.callback(trackers.close)
        trackers.open(context)
        writers = [] if replayed else [given.cls for given in run.plugins.all("record_writers").values()]
        events = GroupEvents(writers, run, display.line)
        parts.callback(events.close)
        for prompt_filter in filters.values():
            prompt_filter.open(context)  # before anything is begun, since it may refuse the run
        events.open(context)
        environments = (trainer_environment(run), engine_environment(run))
        parts.enter_context(held_cache(run.get(CompilerCacheSection), environments))
        placement: Placement = run.make("placements", run.get(PlacementSection).backend)
        placement.on_death = on_death
        parts.push_async_callback(placement.close)
        task_sets = TaskSets(run, output, display.warn)
        scorer = Scorer(task_sets.verifiers, rollout.scoring, output / "logs", display.warn)
        parts.push_async_callback(scorer.close)
        engine_count = 0 if replayed else run.get(ServingSection).num_engines
        trainer, engines = await _start_workers(run, placement, files, output, run_seed, engine_count, display.warn)
        for engine in engines:
            parts.push_async_callback(engine.close)
        router, admission = LeastOutstandingTokensRouter(engines), GroupAdmission()
        maker = make_maker(run, renderer, router, admission, scorer)
        cursor = make_cursor(run, task_sets, renderer, filters)
        gate = HeldAdmission(admission)
        publisher = _publisher(run, trainer, engines, router, gate, display)
        parts.push_async_callback(publisher.transport.close)
        colocated = run.get(PlacementSection).colocate and not replayed
        turns = TakingTurns(publisher.publish, engines, gate) if colocated else None
        recovery = _recovery(run, publisher, router, colocated, display)
        if replayed:
            producer: Producer | SavedCollections = _saved_collections(run, replayed, events, context)
        else:
            plans = make_plans(run, task_sets, files)
            producer = _producer(run, cursor, maker, events, publisher, plans, context.start_rollout_id, display.warn)
        checkpoints = _checkpointer(run, start.identity, context, trainer, display)
        if checkpoints is not None:
            parts.push_async_callback(checkpoints.close)
        accounts = Accounts(
            context=context,
            cursor=cursor,
            events=events,
            producer=producer,
            recovery=recovery,
            trackers=trackers,
            display=display,
            summary=summary,
        )
        session = Session(
            rollout=rollout,
            evaluation=run.get(EvalSection),
            context=context,
            cursor=cursor,
            maker=maker,
            producer=producer,
            events=events,
            objective=run.get(ObjectiveSection),
            advantage=run.make("advantages", run.get(ObjectiveSection).advantage_estimator),
            evaluators=[] if replayed else make_evaluators(run, task_sets, maker, files, display.warn),
            trainer=trainer,
            engines=engines,
            publisher=turns or publisher,
            turns=turns,
            recovery=recovery,
            accounts=accounts,
            checkpoints=checkpoints,
            exit_after=run.get(DebugSection).exit_after_rollout,
        )
        if start.resumed is not None:
            await _go_on(session, start.resumed)
        elif not all(engine.holds_start for engine in engines):
            await publisher.publish(trainer.version)
        yield session
    finally:
        await uninterrupted(parts.aclose())


async def _go_on(session: Session, resumed: Resumed) -> None:
    """Restores trainer, controller and engines, in this order: what engines serve is the trainer's."""
    await session.trainer.restore(resumed.folder, resumed.state.version)
    session.restore(resumed.state)
    if not session.collections:
        done = counted(session.context.start_rollout_id, "collection")
        session.accounts.display.line(f"trained on {done} already: raise rollout.num_rollout above it to go on")
    await session.publisher.publish(session.trainer.version)


def _checkpointer(
    run: LoadedRunFile, identity: Identity | None, context: RunContext, trainer: Trainer, display: Display
) -> Checkpointer | None:
    section = run.get(CheckpointSection)
    if section.save_interval is None or identity is None:
        return None
    store = CheckpointStore(context.output / FOLDER)
    return Checkpointer(store, trainer, section, identity, run.to_toml(), context.attempt, display.warn)


def _saved_collections(run: LoadedRunFile, source: Path, events: GroupEvents, context: RunContext) -> SavedCollections:
    rollout = run.get(RolloutSection)
    return SavedCollections(
        source,
        events,
        collection_size(run),
        siblings=rollout.n_samples_per_prompt,
        tokenizer_sha256=context.protocol.tokenizer_sha256,
        collections=rollout.num_rollout,
        first=context.start_rollout_id,
    )


def _producer(
    run: LoadedRunFile,
    cursor: Cursor | Mixture,
    maker: GroupMaker,
    events: GroupEvents,
    publisher: Publisher,
    plans: Mapping[str, GroupPlan],
    first: int,
    warn: Callable[[str], None],
) -> Producer:
    rollout, asynchronous, size = run.get(RolloutSection), run.get(AsyncSection), collection_size(run)
    return Producer(
        cursor,
        maker,
        events,
        [run.make("group_filters", item) for item in rollout.group_filters],
        GroupBuffer(size, asynchronous.capacity(size)),
        plans,
        collections=rollout.num_rollout,
        concurrent=asynchronous.concurrent_groups(rollout),
        homogeneous=publisher.mode.homogeneous_groups,
        retry=asynchronous.unused_samples_handler == "retry",
        first=first,
        warn=warn,
    )


def _publisher(
    run: LoadedRunFile,
    trainer: Trainer,
    engines: list[Engine],
    router: LeastOutstandingTokensRouter,
    admission: HeldAdmission,
    display: Display,
) -> Publisher:
    serving = run.get(ServingSection)
    return Publisher(
        mode=run.make("publication_modes", serving.publication_mode),
        transport=run.make("transports", serving.transport),
        source=trainer,
        engines=engines,
        router=router,
        admission=admission,
        timeout=serving.publication_timeout,
        warn=display.warn,
        check_equal=serving.check_weight_update_equal,
        check_interval=run.get(DebugSection).diagnostic_interval,
    )


def _recovery(
    run: LoadedRunFile, publisher: Publisher, router: LeastOutstandingTokensRouter, colocated: bool, display: Display
) -> Recovery:
    serving = run.get(ServingSection)
    return Recovery(
        publisher,
        router,
        most=serving.engine_restarts,
        timeout=serving.recovery_timeout,
        warn=display.warn,
        share_devices=colocated,
    )


async def _start_workers(
    run: LoadedRunFile,
    placement: Placement,
    files: ModelFiles,
    output: Path,
    seed: int,
    engine_count: int,
    warn: Callable[[str], None],
) -> tuple[Trainer, list[Engine]]:
    """All of them load the model, which takes seconds: at once."""
    ranks = trainer_specs(run.get(TrainerSection), await placement.devices(), seed, output / "logs")
    cls, config = engine_class(run)
    shared = run.get(PlacementSection).colocate
    contexts = [engine_context(run, placement, files, output, number, warn, shared) for number in range(engine_count)]
    workers = [spec for context in contexts for spec in cls.worker_specs(config, context)]
    await placement.prepare([*ranks, *workers], shared)
    started: list[Any] = await together(
        [
            _start_trainer(run, placement, files, output, seed),
            *(cls.start(config, context) for context in contexts),
        ]
    )
    return started[0], started[1:]


async def _start_trainer(
    run: LoadedRunFile, placement: Placement, files: ModelFiles, output: Path, seed: int
) -> Trainer:
    rollout = run.get(RolloutSection)
    return await start_trainer(
        run,
        WithEnvironment(placement, trainer_environment(run)),
        model_directory=files.directory,
        temperature=rollout.temperature,
        global_batch_size=global_batch_size(run),
        total_steps=total_steps(run),
        constant_length=constant_length(run),
        correction=correction(run),
        scoring_pass=bool(scoring_reasons(run)),
        seed=seed,
        logs=output / "logs",
        diagnostic_interval=run.get(DebugSection).diagnostic_interval,
    )
