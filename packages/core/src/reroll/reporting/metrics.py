"""Metrics of a collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import fmean, pstdev
from typing import Any

from reroll.api import Decision, Disposition, Group, PublicationReport, Trace


@dataclass(frozen=True)
class Totals:
    """Since the start of the run; seconds by the event loop's clock.

    Attributes:
        generating_seconds: training groups were being generated.
        trainer_waiting_seconds: the trainer waited for a collection.
        producer_blocked_seconds: generation stood still and waited for the trainer.
        engine_restarts: of engines that were lost.
        engine_absent_seconds: from their loss until they were in use again, summed over engines.
    """

    generated_tokens: int = 0
    generating_seconds: float = 0.0
    trainer_waiting_seconds: float = 0.0
    producer_blocked_seconds: float = 0.0
    engine_restarts: int = 0
    engine_absent_seconds: float = 0.0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def since(self, before: Totals) -> dict[str, float]:
        """Metrics of what came in between. No rate where nothing was generated, which is no rate of 0: an asynchronous
        run has its last collection ready before the one before is trained on."""
        tokens = self.generated_tokens - before.generated_tokens
        seconds = self.generating_seconds - before.generating_seconds
        rate = {"throughput/generated_tokens_per_second": tokens / seconds} if seconds else {}
        return rate | {
            "throughput/generation_seconds": seconds,
            "wait/trainer_seconds": self.trainer_waiting_seconds - before.trainer_waiting_seconds,
            "wait/producer_seconds": self.producer_blocked_seconds - before.producer_blocked_seconds,
            "engines/restarts": self.engine_restarts - before.engine_restarts,
            "engines/absent_seconds": self.engine_absent_seconds - before.engine_absent_seconds,
        }


def collection_metrics(decided: Sequence[tuple[Group, Decision]], staleness: Sequence[int]) -> dict[str, float]:
    """Of the groups of one collection; `staleness` of those that are trained on, in optimizer steps."""
    groups = [group for group, _ in decided]
    traces = [trace for group in groups for trace in group.traces]
    rewards = [reward for group in groups for reward in group.scored_rewards]
    by_verifier: dict[str, list[float]] = {}
    for trace in traces:
        for name, reward in trace.rewards.items():
            by_verifier.setdefault(name, []).append(reward)
    states = Counter(verdict.state for trace in traces for verdict in trace.verdicts.values())
    lengths = [trace.response_tokens for trace in traces]
    outcomes = Counter(decision.outcome for _, decision in decided)
    return {
        **reported_metrics(traces),
        "rollout/reward": fmean(rewards) if rewards else 0.0,
        "rollout/reward_std": pstdev(rewards) if rewards else 0.0,
        **{f"rollout/reward/{name}": fmean(values) for name, values in by_verifier.items()},
        **component_metrics(traces),
        **{f"rollout/verdicts/{state}": count for state, count in sorted(states.items())},
        "rollout/groups": len(groups),
        "rollout/groups_passed": outcomes["passed"],
        "rollout/groups_filtered": outcomes["filtered"],
        "rollout/groups_aborted": outcomes["aborted"],
        "rollout/groups_equal_rewards": sum(len(set(group.scored_rewards)) == 1 for group in groups),
        "rollout/groups_unknown": sum(bool(group.unknown_verifiers) for group in groups),
        "rollout/failed_responses": len(traces) - len(rewards),
        "rollout/response_tokens": fmean(lengths),
        "rollout/response_tokens_min": min(lengths),
        "rollout/response_tokens_max": max(lengths),
        "rollout/truncated": fmean(trace.truncated for trace in traces),
        "staleness/mean": fmean(staleness) if staleness else 0.0,
        "staleness/max": max(staleness, default=0),
        **{f"staleness/groups_{steps}": count for steps, count in sorted(Counter(staleness).items())},
    }


def component_metrics(traces: Sequence[Trace]) -> dict[str, float]:
    """Means of the parts of each verifier's score, over the verdicts that have them."""
    found: dict[str, list[float]] = {}
    for trace in traces:
        for name, verdict in trace.verdicts.items():
            for part, value in verdict.components.items():
                found.setdefault(f"rollout/components/{name}/{part}", []).append(value)
    return {name: fmean(values) for name, values in sorted(found.items())}


def reported_metrics(traces: Sequence[Trace]) -> dict[str, float]:
    """Means of what harnesses and task sets report of traces, over those that report it."""
    found: dict[str, list[float]] = {}
    for trace in traces:
        for name, value in trace.metrics.items():
            found.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in found.items()}


def source_metrics(
    decided: Sequence[tuple[Group, Decision]], names: Iterable[str], ended: Mapping[str, Mapping[Disposition, int]]
) -> dict[str, float]:
    """Of each data source: its groups in one collection, and how its dispatches have ended since the run began."""
    metrics: dict[str, float] = {}
    for name in names:
        own = [(group, decision) for group, decision in decided if group.env_name == name]
        rewards = [reward for group, _ in own for reward in group.scored_rewards]
        traces = [trace for group, _ in own for trace in group.traces]
        found = {
            **reported_metrics(traces),
            "groups": len(own),
            "groups_passed": sum(decision.outcome == "passed" for _, decision in own),
            "groups_unknown": sum(bool(group.unknown_verifiers) for group, _ in own),
            **({"reward": fmean(rewards)} if rewards else {}),
            **({"response_tokens": fmean(trace.response_tokens for trace in traces)} if traces else {}),
            **{f"dispatches_{disposition}": count for disposition, count in ended.get(name, {}).items()},
        }
        metrics |= {f"source/{name}/{metric}": float(value) for metric, value in found.items()}
    return metrics


def pipeline_metrics(ledger: Mapping[str, int], retried: int) -> dict[str, float]:
    """Where the run's groups are, and how they have ended so far; see `Ledger.summary`."""
    return {f"groups/{name}": float(count) for name, count in ledger.items()} | {"groups/retried": float(retried)}


def step_metrics(step: Mapping[str, Any]) -> dict[str, float | str]:
    """Of one optimizer step; what has a room of its own keeps it."""
    return {name if "/" in name else f"train/{name}": value for name, value in step.items()}


def training_metrics(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of the optimizer steps of one collection together."""
    if not steps:
        return {}
    seconds = sum(step["seconds"] for step in steps)
    return {
        "throughput/trained_tokens_per_second": sum(step["forward_tokens"] for step in steps) / seconds,
        "throughput/training_seconds": seconds,
    }


def publication_metrics(report: PublicationReport) -> dict[str, float]:
    """Of one publication."""
    return {
        "publication/seconds": report.seconds,
        "publication/pause_seconds": report.pause_seconds,
        "publication/recompute_seconds": report.recompute_seconds,
        "publication/in_flight": report.in_flight,
        "publication/attempts": report.attempts,
        "publication/engines": len(report.engines),
        "publication/bytes": report.num_bytes,
    }
