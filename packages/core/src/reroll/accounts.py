"""What a run counts of itself and tells: metrics to trackers, lines to the display, totals to the summary."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from reroll.api import Group, PublicationReport, RunContext, counted
from reroll.publication.recovery import Recovery
from reroll.reporting.display import Display
from reroll.reporting.metrics import (
    Totals,
    collection_metrics,
    pipeline_metrics,
    publication_metrics,
    source_metrics,
    step_metrics,
    training_metrics,
)
from reroll.reporting.summary import Summary
from reroll.reporting.trackers import Trackers
from reroll.rollouts.buffer import Collection
from reroll.rollouts.evaluation import EvalResult
from reroll.rollouts.events import GroupEvents
from reroll.rollouts.producer import Producer
from reroll.rollouts.replayed import SavedCollections
from reroll.tasks.cursor import Cursor
from reroll.tasks.mixture import Mixture
from reroll.traces.names import ROLLOUTS


@dataclass
class Accounts:
    """Everything that is counted, over all starts of the run."""

    context: RunContext
    cursor: Cursor | Mixture
    events: GroupEvents
    producer: Producer | SavedCollections
    recovery: Recovery
    trackers: Trackers
    display: Display
    summary: Summary
    _began: float | None = None
    _warned: set[str] = field(default_factory=set)
    _evaluation_seconds: float = 0.0
    """Since training began."""
    _reported: Totals = field(default_factory=Totals)
    """As of the last report."""
    _before: Totals = field(default_factory=Totals)
    """Of earlier starts of the run."""
    _wall_before: float = 0.0
    """That they trained for, in seconds."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on counting from the summary's state that an earlier start of the run left."""
        summary = self.summary
        summary.restore(state)
        self._before = self._reported = Totals(
            generated_tokens=summary.generated_tokens,
            generating_seconds=summary.generation_seconds,
            trainer_waiting_seconds=summary.trainer_waiting_seconds,
            producer_blocked_seconds=summary.producer_blocked_seconds,
            engine_restarts=summary.engine_restarts,
            engine_absent_seconds=summary.engine_absent_seconds,
        )
        self._wall_before = summary.training_wall_seconds

    def collecting(self) -> None:
        """The clock of training runs from the first call."""
        if self._began is None:
            self._began = asyncio.get_running_loop().time()
            self.display.begin()
        self.display.phase("training")

    def collected(
        self,
        collection: Collection,
        steps: Sequence[dict[str, Any]],
        publication: PublicationReport | None,
        version: int,
    ) -> None:
        """Metrics of one collection, after whose `steps` the trainer is at `version`."""
        before, now = self._reported, self._totals()
        self._reported = now
        summary = self.summary
        summary.generated_tokens, summary.generation_seconds = now.generated_tokens, now.generating_seconds
        summary.trainer_waiting_seconds = now.trainer_waiting_seconds
        summary.producer_blocked_seconds = now.producer_blocked_seconds
        summary.collections = collection.rollout_id + 1
        summary.steps = version
        summary.trained_samples += int(sum(step["responses"] for step in steps))
        summary.trained_tokens += int(sum(step["forward_tokens"] for step in steps))
        summary.training_seconds += sum(step["seconds"] for step in steps)
        decided = [(item.group, item.decision) for item in collection.groups]
        summary.judged(group for group, _ in decided)
        ages = collection.staleness()
        consumed = [age for item, age in zip(collection.groups, ages, strict=True) if item.passed]
        metrics = collection_metrics(decided, consumed) | training_metrics(steps) | self.events.metrics()
        if isinstance(self.cursor, Mixture):
            metrics |= source_metrics(decided, self.cursor.sources, self.events.by_source)
        metrics["rollout/collections"] = collection.rollout_id + 1
        metrics["rollout/skipped_prompts"] = self.cursor.skipped.total()
        metrics |= pipeline_metrics(self.events.ledger.summary(), self.events.retried) | now.since(before)
        if publication:
            summary.publication_seconds += publication.seconds
            summary.pause_seconds += publication.pause_seconds
            summary.recompute_seconds += publication.recompute_seconds
            metrics |= publication_metrics(publication)
        for earlier, step in enumerate(steps[:-1], version - len(steps) + 1):
            self.trackers.log(earlier, step_metrics(step))
        self.trackers.log(version, {**metrics, **(step_metrics(steps[-1]) if steps else {})})
        self.trackers.log_groups(version, collection.rollout_id, decided)
        self.display.collected(collection.rollout_id + 1, version, metrics)
        assert self._began is not None, "collecting() comes first"
        summary.training_wall_seconds = (
            self._wall_before + asyncio.get_running_loop().time() - self._began - self._evaluation_seconds
        )

    def evaluated(self, step: int, result: EvalResult | None, seconds: float) -> None:
        """Of one set, at a step; its time is none of training. No result where a lazy set had nothing yet."""
        if result is not None:
            self.summary.evaluations.append(asdict(result))
            self.trackers.log(step, result.metrics())
            self.display.evaluated(result.name, asdict(result))
        if self._began is not None:
            self._evaluation_seconds += seconds

    def finish(self, version: int) -> None:
        """Brings the summary to what holds now."""
        self.summary.steps = version
        self.summary.ledger = self.events.ledger.summary()
        self.summary.filtered = dict(self.events.filtered)
        self.summary.skipped = dict(self.cursor.skipped)
        totals = self._totals()
        self.summary.engine_restarts = totals.engine_restarts
        self.summary.engine_absent_seconds = totals.engine_absent_seconds

    def _totals(self) -> Totals:
        producer = self.producer
        return self._before + Totals(
            generated_tokens=producer.generated_tokens,
            generating_seconds=producer.generating.seconds,
            trainer_waiting_seconds=producer.trainer_waiting.seconds,
            producer_blocked_seconds=producer.blocked.seconds,
            engine_restarts=self.recovery.restarts,
            engine_absent_seconds=self.recovery.absent_seconds,
        )

    def warn_of_failures(self, groups: Iterable[Group]) -> None:
        """Says the first failure of each verifier, harness and engine, once."""
        for error in (error for group in groups for trace in group.traces for error in trace.errors):
            if error["where"] not in self._warned:
                self._warned.add(error["where"])
                logs = self.context.output / "logs"
                self.display.warn(f"{error['where']}: {error['message']} (said once; more in {logs})")

    def tell_end_of_data(self, collections: int) -> None:
        """Says that there is nothing more, and what became of what was dispatched."""
        ended = self.events.ledger.summary()
        listed = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in ended.items() if count)
        self.display.line(f"the data ran out after {counted(collections, 'collection')}; prompts: {listed}")

    def why_empty(self, collection: Collection, collections: int) -> str:
        """What the user should know when `collections` in a row held no group worth training on."""
        in_a_row = counted(collections, "collection") + (" in a row" if collections > 1 else "")
        if collection.passed:
            return (
                f"{in_a_row} held groups, but no response to train on: every one was cut off "
                "at the length limit, and objective.mask_truncated_completions leaves those out. Raise "
                "rollout.rollout_max_response_len"
            )
        reasons = Counter(item.decision.reason or item.decision.outcome for item in collection.groups)
        listed = ", ".join(f"{reason} ({counted(count, 'group')})" for reason, count in reasons.most_common(3))
        traces = [trace for item in collection.groups for trace in item.group.traces]
        failures = Counter(error["message"] for trace in traces for error in trace.errors)
        if sum(failures.values()) > len(traces) / 2:
            remedy = f"Most responses failed: {failures.most_common(1)[0][0]}; see {self.context.output / 'logs'}"
        else:
            remedy = (
                f"Responses of one prompt must differ in reward: check the verdicts in "
                f"{self.context.output / ROLLOUTS}, choose harder or easier tasks, or raise rollout.temperature or "
                "rollout.n_samples_per_prompt"
            )
        return f"{in_a_row} held no group to train on{'; the last one' if collections > 1 else ''}: {listed}. {remedy}"
