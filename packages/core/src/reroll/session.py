"""A run's parts, put together from its run file, and what the loop does with them."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import tomli_w

from reroll.api import (
    Advantage,
    Decision,
    Engine,
    EngineContext,
    Group,
    GroupFilter,
    Placement,
    PromptFilter,
    Protocol,
    PublicationReport,
    RunContext,
    Sample,
    Seeds,
    WorkerDied,
)
from reroll.config import LoadedRunFile
from reroll.config.run import RunSection
from reroll.models.config import ModelSection
from reroll.models.files import ModelFiles, resolve_model
from reroll.placement.config import PlacementSection
from reroll.plan import global_batch_size, updates_per_collection
from reroll.publication.publisher import Publisher
from reroll.reporting.config import OutputSection, TrackersSection
from reroll.reporting.display import Display
from reroll.reporting.summary import Summary
from reroll.reporting.trackers import Trackers
from reroll.rollouts.admission import GroupAdmission
from reroll.rollouts.config import EvalSection, RolloutSection, seeds
from reroll.rollouts.evaluation import Evaluator
from reroll.rollouts.events import GroupEvents
from reroll.rollouts.filters import decide
from reroll.rollouts.producer import GroupPlan, Producer
from reroll.rollouts.scoring.scorer import Scorer, SelectedVerifier
from reroll.serving.config import ServingSection
from reroll.serving.router import LeastLoadedRouter
from reroll.tasks.config import DataSection
from reroll.tasks.cursor import Cursor, Dispatch
from reroll.tasks.render import Renderer
from reroll.traces.samples import group_samples
from reroll.traces.saved import save_groups, write_traces
from reroll.training.config import ObjectiveSection
from reroll.training.trainer import Trainer, start_trainer
from reroll.workers.together import together

Decided = list[tuple[Group, Decision]]


@dataclass
class Session:
    """Everything that the loop works with."""

    rollout: RolloutSection
    evaluation: EvalSection
    context: RunContext
    cursor: Cursor
    producer: Producer
    events: GroupEvents
    group_filters: list[GroupFilter]
    advantage: Advantage
    evaluators: list[Evaluator]
    trainer: Trainer
    engines: list[Engine]
    publisher: Publisher
    trackers: Trackers
    display: Display
    summary: Summary
    _evaluated: dict[str, int] = field(default_factory=dict)
    _began: float | None = None

    def plan(self, rollout_id: int) -> GroupPlan:
        """How the groups of a collection are drawn."""
        return GroupPlan(
            rollout_id=rollout_id,
            size=self.rollout.n_samples_per_prompt,
            sampling=self.rollout.sampling(seed=0),
            max_context=self.rollout.max_context,
            purpose="train",
        )

    def dispatch(self) -> list[tuple[int, Dispatch]]:
        """The next collection's tasks, each with the number of its group."""
        if self._began is None:
            self._began = time.perf_counter()
            self.display.begin()
        self.display.phase("training")
        taken = self.cursor.take(self.rollout.rollout_batch_size)
        numbered = [(self.producer.next_group_index(), dispatch) for dispatch in taken]
        for group_index, dispatch in numbered:
            self.events.dispatched(group_index, dispatch.task.key)
        return numbered

    def decide(self, groups: Sequence[Group]) -> Decided:
        """What the filters decide about each group; recorded first, applied later."""
        decided = [(group, decide(group, self.group_filters)) for group in groups]
        for group, decision in decided:
            self.events.scored(group, decision)
        return decided

    def save(self, rollout_id: int, decided: Decided) -> None:
        """Keeps every trace on disk, whatever was decided about it."""
        save_groups(self.context.output, rollout_id, decided)

    def samples(self, decided: Decided) -> list[Sample]:
        """What the trainer gets: the samples of the groups that passed, in the order of dispatch."""
        size = self.rollout.n_samples_per_prompt
        return [
            sample
            for position, (group, decision) in enumerate(decided)
            if decision.outcome == "passed"
            for sample in group_samples(group, self.advantage, first_slot=position * size)
        ]

    def consume(self, decided: Decided) -> None:
        """Ends every dispatch of a collection that was trained on."""
        for group, decision in decided:
            disposition = "consumed" if decision.outcome == "passed" else decision.outcome
            self.events.left(group, disposition, group.staleness(self.trainer.version))

    def why_empty(self, decided: Decided) -> str:
        """What the user should know when no group was worth training on."""
        reasons = Counter(decision.reason or decision.outcome for _, decision in decided)
        listed = ", ".join(f"{reason} ({count} groups)" for reason, count in reasons.most_common(3))
        failures = Counter(error["message"] for group, _ in decided for trace in group.traces for error in trace.errors)
        told = "; most frequent failure: " + failures.most_common(1)[0][0] if failures else ""
        return (
            f"{self.rollout.max_empty_collections} collections in a row held no group to train on; the last one: "
            f"{listed}{told}. Responses of one prompt must differ in reward: check the verifier's verdicts in "
            f"{self.context.output / 'rollouts'}, choose harder or easier tasks, or raise rollout.temperature or "
            "rollout.n_samples_per_prompt"
        )

    async def evaluate(self, every_set: bool = False) -> None:
        """Runs the evaluation sets that are due at this step; a set never runs twice at one step."""
        step = self.trainer.version
        for evaluator in self.evaluators:
            name = evaluator.settings.name
            interval = evaluator.settings.eval_interval or self.evaluation.eval_interval
            last = self._evaluated.get(name)
            due = interval is not None and step // interval > (last or 0) // interval
            if last == step or not (every_set or due):
                continue
            self._evaluated[name] = step
            self.display.phase("evaluating")
            result, groups = await evaluator.run(step)
            path = self.context.output / "eval" / name / f"step_{step}" / "rollouts.jsonl"
            write_traces(path, ((group, Decision("passed")) for group in groups))
            self.summary.evaluations.append(asdict(result))
            self.trackers.log(step, result.metrics())
            self.display.evaluated(name, asdict(result))

    def report(
        self,
        rollout_id: int,
        decided: Decided,
        samples: Sequence[Sample],
        steps: Sequence[dict[str, float]],
        publication: PublicationReport | None,
    ) -> None:
        """Metrics of one collection to trackers, display and summary."""
        summary = self.summary
        tokens = self.producer.generated_tokens - summary.generated_tokens
        seconds = self.producer.generation_seconds - summary.generation_seconds
        summary.generated_tokens, summary.generation_seconds = (
            self.producer.generated_tokens,
            self.producer.generation_seconds,
        )
        summary.collections = rollout_id + 1
        summary.steps = self.trainer.version
        summary.trained_samples += len(samples)
        summary.trained_tokens += int(sum(step["forward_tokens"] for step in steps))
        summary.training_seconds += sum(step["seconds"] for step in steps)
        summary.publication_seconds += publication.seconds if publication else 0.0
        metrics = collection_metrics(decided, self.trainer.version)
        metrics["throughput/generated_tokens_per_second"] = tokens / seconds if seconds else 0.0
        metrics["throughput/generation_seconds"] = seconds
        for name in steps[0] if steps else ():
            metrics[f"train/{name}"] = fmean(step[name] for step in steps)
        if publication:
            metrics |= {
                "publication/seconds": publication.seconds,
                "publication/pause_seconds": publication.pause_seconds,
                "publication/bytes": publication.num_bytes,
            }
        self.trackers.log(self.trainer.version, metrics)
        self.display.collected(rollout_id + 1, self.trainer.version, metrics)
        summary.training_wall_seconds = time.perf_counter() - (self._began or 0.0)

    def finish_summary(self) -> None:
        self.summary.ledger = self.events.ledger.summary()
        self.summary.filtered = dict(self.events.filtered)
        self.summary.skipped = dict(self.cursor.skipped)


def collection_metrics(decided: Decided, version: int) -> dict[str, float]:
    """Metrics of the groups of one collection."""
    groups = [group for group, _ in decided]
    traces = [trace for group in groups for trace in group.traces]
    rewards = [reward for group in groups for reward in group.scored_rewards]
    reasons = Counter(decision.outcome for _, decision in decided)
    equal = sum(len(set(group.scored_rewards)) == 1 for group in groups)
    return {
        "rollout/reward": fmean(rewards) if rewards else 0.0,
        "rollout/groups": len(groups),
        "rollout/groups_passed": reasons["passed"],
        "rollout/groups_filtered": reasons["filtered"],
        "rollout/groups_aborted": reasons["aborted"],
        "rollout/groups_equal_rewards": equal,
        "rollout/failed_responses": len(traces) - len(rewards),
        "rollout/response_tokens": fmean(trace.response_tokens for trace in traces),
        "rollout/truncated": fmean(trace.truncated for trace in traces),
        "rollout/staleness": fmean(group.staleness(version) for group in groups),
    }


@asynccontextmanager
async def open_session(run: LoadedRunFile, output: Path, display: Display) -> AsyncIterator[Session]:
    """Starts trainer, engines and scoring, and ends them all. A worker that dies cancels the body."""
    rollout, serving, data = run.get(RolloutSection), run.get(ServingSection), run.get(DataSection)
    run_seed, data_seed, rollout_seed = seeds(run)
    files = resolve_model(run.get(ModelSection).path)
    renderer = Renderer(files, _chat_template(run))
    filters = {item.name: run.make("prompt_filters", item) for item in data.prompt_filters}
    context = make_context(run, files, renderer, output, Seeds(run_seed, data_seed, rollout_seed), filters)
    (output / "run.toml").write_text(tomli_w.dumps(run.to_toml()), "utf-8")
    (output / "context.json").write_text(json.dumps(context.to_json(), indent=2) + "\n", "utf-8")
    deaths: list[WorkerDied] = []
    body = asyncio.current_task()
    assert body is not None

    def died(error: WorkerDied) -> None:
        deaths.append(error)
        body.cancel()

    placement: Placement = run.make("placements", run.get(PlacementSection).backend)
    placement.on_death = died
    trackers = Trackers([run.make("trackers", item) for item in run.get(TrackersSection).names])
    asked = [given.cls.from_run(run) for given in run.plugins.all("record_writers").values()]
    events = GroupEvents([writer for writer in asked if writer is not None])
    scorer = Scorer(
        {
            item.name: SelectedVerifier(
                run.make("verifiers", item), run.plugins.get("verifiers", item.name).distribution
            )
            for item in data.verifiers
        },
        rollout.scoring,
    )
    try:
        trackers.open(context)
        events.open(context)
        trainer, engines = await _start_workers(run, placement, files, output, run_seed)
        router, admission = LeastLoadedRouter(engines), GroupAdmission()
        producer = Producer(
            harness=run.make("harnesses", rollout.harness),
            renderer=renderer,
            router=router,
            admission=admission,
            scorer=scorer,
            verifier_weights=data.weights(),
            failure_policy=rollout.failure_policy,
            rollout_seed=rollout_seed,
        )
        for prompt_filter in filters.values():
            prompt_filter.open(context)
        yield Session(
            rollout=rollout,
            evaluation=run.get(EvalSection),
            context=context,
            cursor=Cursor(
                run.make("task_sets", data.task_set),
                renderer.render,
                filters,
                min(rollout.rollout_max_prompt_len, rollout.max_context - 1),
                data_seed,
                data.shuffle,
                data.epochs,
            ),
            producer=producer,
            events=events,
            group_filters=[run.make("group_filters", item) for item in rollout.group_filters],
            advantage=run.make("advantages", run.get(ObjectiveSection).advantage_estimator),
            evaluators=[
                Evaluator(item, run.make("task_sets", item.task_set), producer, rollout)
                for item in run.get(EvalSection).sets
            ],
            trainer=trainer,
            engines=engines,
            publisher=Publisher(
                mode=run.make("publication_modes", serving.publication_mode),
                transport=run.make("transports", serving.transport),
                source=trainer,
                engines=engines,
                router=router,
                admission=admission,
                deadline=serving.publication_timeout,
            ),
            trackers=trackers,
            display=display,
            summary=Summary(name=context.name, run_id=context.run_id, output=output),
        )
    except asyncio.CancelledError:
        if deaths:
            raise deaths[0] from None
        raise
    finally:
        await asyncio.gather(scorer.close(), placement.close())
        events.close()
        trackers.close()


async def _start_workers(
    run: LoadedRunFile, placement: Placement, files: ModelFiles, output: Path, seed: int
) -> tuple[Trainer, list[Engine]]:
    """All of them load the model, which takes seconds: at once."""
    started: list[Any] = await together(
        [
            _start_trainer(run, placement, files, output, seed),
            *(
                _start_engine(run, placement, files, output, number)
                for number in range(run.get(ServingSection).num_engines)
            ),
        ]
    )
    return started[0], started[1:]


async def _start_trainer(
    run: LoadedRunFile, placement: Placement, files: ModelFiles, output: Path, seed: int
) -> Trainer:
    rollout = run.get(RolloutSection)
    return await start_trainer(
        run,
        placement,
        model_directory=files.directory,
        temperature=rollout.temperature,
        global_batch_size=global_batch_size(run),
        total_steps=rollout.num_rollout * updates_per_collection(run),
        seed=seed,
        log=output / "logs" / "trainer.log",
    )


async def _start_engine(
    run: LoadedRunFile, placement: Placement, files: ModelFiles, output: Path, number: int
) -> Engine:
    selection = run.get(ServingSection).engine
    cls: Any = run.component("engines", selection.name)
    name = f"engine-{number}"
    engine: Engine = await cls.start(
        cls.Config(**selection.options),
        EngineContext(name, files.directory, 0, placement, output / "logs" / f"{name}.log"),
    )
    return engine


def make_context(
    run: LoadedRunFile,
    files: ModelFiles,
    renderer: Renderer,
    output: Path,
    seeds: Seeds,
    filters: Mapping[str, PromptFilter],
) -> RunContext:
    """The run's identity, made once."""
    data, rollout = run.get(DataSection), run.get(RolloutSection)
    judges: dict[str, Any] = {}
    for item in data.verifiers:
        given = run.plugins.get("verifiers", item.name)
        judges[item.name] = {
            "distribution": given.distribution,
            "version": given.version,
            "weight": data.weights()[item.name],
            "options": item.options,
        }
    sampling = asdict(rollout.sampling(seed=0))
    sampling.pop("seed")
    return RunContext(
        run_id=secrets.token_hex(8),
        name=run.get(RunSection).name,
        attempt=secrets.token_hex(8),
        fresh=True,
        start_rollout_id=0,
        checkpoint=files.inventory(),
        protocol=Protocol(sampling, renderer.template_sha256, renderer.tokenizer_sha256, judges),
        seeds=seeds,
        output=output,
        filters={name: prompt_filter.fingerprint for name, prompt_filter in filters.items()},
    )


def make_output(run: LoadedRunFile) -> Path:
    """The run's folder: the given one, or a new one that no other run has."""
    given = run.get(OutputSection).dir
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        return given
    base = Path("outputs") / f"{run.get(RunSection).name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        path = base if number == 1 else base.with_name(f"{base.name}-{number}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
    raise AssertionError("a thousand runs began in this second")


def _chat_template(run: LoadedRunFile) -> str | None:
    path = run.get(ModelSection).chat_template
    return path.read_text("utf-8") if path else None
