"""Metrics of a collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from reroll.api import Decision, Group, PublicationReport


def collection_metrics(decided: Sequence[tuple[Group, Decision]], version: int) -> dict[str, float]:
    """Of the groups of one collection; `version` is the trainer's when they were consumed."""
    groups = [group for group, _ in decided]
    traces = [trace for group in groups for trace in group.traces]
    rewards = [reward for group in groups for reward in group.scored_rewards]
    by_verifier: dict[str, list[float]] = {}
    for trace in traces:
        for name, reward in trace.rewards.items():
            by_verifier.setdefault(name, []).append(reward)
    lengths = [trace.response_tokens for trace in traces]
    outcomes = Counter(decision.outcome for _, decision in decided)
    return {
        "rollout/reward": fmean(rewards) if rewards else 0.0,
        "rollout/reward_std": pstdev(rewards) if rewards else 0.0,
        **{f"rollout/reward/{name}": fmean(values) for name, values in by_verifier.items()},
        "rollout/groups": len(groups),
        "rollout/groups_passed": outcomes["passed"],
        "rollout/groups_filtered": outcomes["filtered"],
        "rollout/groups_aborted": outcomes["aborted"],
        "rollout/groups_equal_rewards": sum(len(set(group.scored_rewards)) == 1 for group in groups),
        "rollout/failed_responses": len(traces) - len(rewards),
        "rollout/response_tokens": fmean(lengths),
        "rollout/response_tokens_min": min(lengths),
        "rollout/response_tokens_max": max(lengths),
        "rollout/truncated": fmean(trace.truncated for trace in traces),
        "rollout/staleness": fmean(group.staleness(version) for group in groups),
    }


def training_metrics(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of the optimizer steps of one collection: their means."""
    return {f"train/{name}": fmean(step[name] for step in steps) for name in (steps[0] if steps else ())}


def publication_metrics(report: PublicationReport) -> dict[str, float]:
    """Of one publication."""
    return {
        "publication/seconds": report.seconds,
        "publication/pause_seconds": report.pause_seconds,
        "publication/bytes": report.num_bytes,
    }
