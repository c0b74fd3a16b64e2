"""What the loop does with a run's parts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from reroll.api import (
    Advantage,
    Decision,
    Engine,
    Group,
    GroupFilter,
    PublicationReport,
    RunContext,
    Sample,
)
from reroll.publication.publisher import Publisher
from reroll.reporting.display import Display
from reroll.reporting.metrics import collection_metrics, publication_metrics, training_metrics
from reroll.reporting.summary import Summary
from reroll.reporting.trackers import Trackers
from reroll.rollouts.config import EvalSection, RolloutSection
from reroll.rollouts.evaluation import Evaluator
from reroll.rollouts.events import GroupEvents
from reroll.rollouts.filters import decide
from reroll.rollouts.producer import GroupPlan, Producer
from reroll.tasks.cursor import Cursor, Dispatch
from reroll.traces.samples import group_samples
from reroll.traces.saved import save_groups, write_traces
from reroll.training.trainer import Trainer

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
    _warned: set[str] = field(default_factory=set)
    _evaluation_seconds: float = 0.0
    """Since training began."""

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
        first = self.events.ledger.dispatched
        numbered = list(enumerate(taken, start=first))
        for group_index, dispatch in numbered:
            self.events.dispatched(group_index, dispatch.task.key)
        return numbered

    def decide(self, groups: Sequence[Group]) -> Decided:
        """What the filters decide about each group; recorded first, applied later."""
        self._warn(groups)
        decided = [(group, decide(group, self.group_filters)) for group in groups]
        for group, decision in decided:
            self.events.scored(group, decision)
        return decided

    def _warn(self, groups: Sequence[Group]) -> None:
        """Says the first failure of each verifier, harness and engine once, when it happens."""
        for error in (error for group in groups for trace in group.traces for error in trace.errors):
            if error["where"] not in self._warned:
                self._warned.add(error["where"])
                logs = self.context.output / "logs"
                self.display.line(f"warning: {error['where']}: {error['message']} (said once; more in {logs})")

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

    def consume(self, decided: Decided, version: int) -> None:
        """Ends every dispatch of a collection; `version` is the trainer's when it took the collection."""
        for group, decision in decided:
            disposition = "consumed" if decision.outcome == "passed" else decision.outcome
            self.events.left(group, disposition, group.staleness(version))

    def why_empty(self, decided: Decided, collections: int) -> str:
        """What the user should know when `collections` in a row held no group worth training on."""
        reasons = Counter(decision.reason or decision.outcome for _, decision in decided)
        listed = ", ".join(f"{reason} ({count} groups)" for reason, count in reasons.most_common(3))
        traces = [trace for group, _ in decided for trace in group.traces]
        failures = Counter(error["message"] for trace in traces for error in trace.errors)
        if sum(failures.values()) > len(traces) / 2:
            remedy = f"Most responses failed: {failures.most_common(1)[0][0]}; see {self.context.output / 'logs'}"
        else:
            remedy = (
                f"Responses of one prompt must differ in reward: check the verdicts in "
                f"{self.context.output / 'rollouts'}, choose harder or easier tasks, or raise rollout.temperature or "
                "rollout.n_samples_per_prompt"
            )
        return f"{collections} collections in a row held no group to train on; the last one: {listed}. {remedy}"

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
            begun = time.perf_counter()
            result, groups = await evaluator.run(step)
            self._warn(groups)
            path = self.context.output / "eval" / name / f"step_{step}" / "rollouts.jsonl"
            write_traces(path, ((group, Decision("passed")) for group in groups))
            self.summary.evaluations.append(asdict(result))
            self.trackers.log(step, result.metrics())
            self.display.evaluated(name, asdict(result))
            if self._began is not None:
                self._evaluation_seconds += time.perf_counter() - begun

    def report(
        self,
        rollout_id: int,
        version: int,
        decided: Decided,
        samples: Sequence[Sample],
        steps: Sequence[dict[str, float]],
        publication: PublicationReport | None,
    ) -> None:
        """Metrics of one collection to trackers, display and summary; `version` as for `consume`."""
        summary, producer = self.summary, self.producer
        tokens = producer.generated_tokens - summary.generated_tokens
        seconds = producer.generation_seconds - summary.generation_seconds
        summary.generated_tokens, summary.generation_seconds = producer.generated_tokens, producer.generation_seconds
        summary.collections = rollout_id + 1
        summary.steps = self.trainer.version
        summary.trained_samples += len(samples)
        summary.trained_tokens += int(sum(step["forward_tokens"] for step in steps))
        summary.training_seconds += sum(step["seconds"] for step in steps)
        summary.publication_seconds += publication.seconds if publication else 0.0
        metrics = collection_metrics(decided, version) | training_metrics(steps) | self.events.metrics()
        metrics["throughput/generated_tokens_per_second"] = tokens / seconds if seconds else 0.0
        metrics["throughput/generation_seconds"] = seconds
        if publication:
            metrics |= publication_metrics(publication)
        self.trackers.log(self.trainer.version, metrics)
        self.display.collected(rollout_id + 1, self.trainer.version, metrics)
        assert self._began is not None, "dispatch() comes first"
        summary.training_wall_seconds = time.perf_counter() - self._began - self._evaluation_seconds

    def finish_summary(self) -> None:
        self.summary.ledger = self.events.ledger.summary()
        self.summary.filtered = dict(self.events.filtered)
        self.summary.skipped = dict(self.cursor.skipped)
