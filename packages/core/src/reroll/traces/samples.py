"""From scored groups to the samples of a collection."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from reroll.api import Advantage, Group, PluginError, Sample, Trace


def collection_samples(
    groups: Sequence[Group],
    slots: Sequence[int],
    advantage: Advantage,
    *,
    mask_truncated: bool = False,
    penalties: Mapping[int, float] | None = None,
) -> list[Sample]:
    """One sample a branch of every response that has a reward and a token to train on. Branches may share nodes: their
    tokens carry loss in the first of them alone.

    Args:
        slots: position in the collection of each group's first response. A response keeps its slot when siblings are
            left out, so that the cut into optimizer steps does not depend on failures.
        advantage: asked once, for all groups.
        mask_truncated: no sample of responses that were cut off at the length limit. Their rewards count in the
            statistics of their group all the same.
        penalties: slot → number to subtract from that response's reward before advantages are taken. A sample's
            `reward` stays what the response was given.
    """
    costs = penalties or {}
    scored = [[(slot + index, reward) for index, reward in _scored(group)] for group, slot in _placed(groups, slots)]
    taken = batch_advantages(advantage, [[reward - costs.get(slot, 0.0) for slot, reward in group] for group in scored])
    by_slot = {
        slot: value
        for group, values in zip(scored, taken, strict=True)
        for (slot, _), value in zip(group, values, strict=True)
    }
    samples = unweighted_samples(groups, slots, mask_truncated=mask_truncated)
    return [replace(sample, advantage=by_slot[sample.slot]) for sample in samples]


def unweighted_samples(groups: Sequence[Group], slots: Sequence[int], *, mask_truncated: bool = False) -> list[Sample]:
    """The same samples before anybody was asked for advantages, which are 0."""
    samples: list[Sample] = []
    for group, first_slot in _placed(groups, slots):
        for index, reward in _scored(group):
            trace = group.traces[index]
            if mask_truncated and trace.truncated:
                continue
            trained: set[int] = set()
            for leaf in trace.leaves():
                token_ids, mask, logprobs = branch_tokens(trace, leaf, trained)
                if any(mask[1:]):  # the first token of a sequence is never predicted
                    trained.update(trace.path(leaf))
                    samples.append(
                        Sample(
                            token_ids=token_ids,
                            loss_mask=mask,
                            rollout_logprobs=logprobs,
                            advantage=0.0,
                            reward=reward,
                            group_index=group.group_index,
                            weight_version=min(trace.weight_versions, default=0),
                            slot=first_slot + index,
                        )
                    )
    return samples


def _placed(groups: Sequence[Group], slots: Sequence[int]) -> list[tuple[Group, int]]:
    return list(zip(groups, slots, strict=True))


def _scored(group: Group) -> list[tuple[int, float]]:
    """Place in the group and reward of every response that was scored."""
    return [(index, reward) for index, reward in enumerate(group.rewards) if reward is not None]


def batch_advantages(advantage: Advantage, groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """What the estimator gives for the groups' rewards; PluginError unless that is one finite number a reward."""
    try:
        given = [[float(value) for value in values] for values in advantage.batch(groups)]
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        raise PluginError(f"advantage {advantage.name!r} raised {type(error).__name__}: {error}") from error
    if len(given) != len(groups):
        raise PluginError(f"advantage {advantage.name!r} gave advantages of {len(given)} groups for {len(groups)}")
    for values, rewards in zip(given, groups, strict=True):
        if len(values) != len(rewards) or not all(map(isfinite, values)):
            raise PluginError(f"advantage {advantage.name!r} gave {values!r} for {len(rewards)} rewards")
    return given


def branch_tokens(
    trace: Trace, leaf: int | None = None, trained: Container[int] = ()
) -> tuple[list[int], list[bool], list[float]]:
    """Tokens, loss mask and engine log-probabilities of one branch, root first; 0.0 where nothing was sampled.

    Args:
        trained: nodes without loss, because another sample has theirs.
    """
    token_ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for index in trace.path(leaf):
        node = trace.nodes[index]
        token_ids += node.token_ids
        mask += [False] * len(node.mask) if index in trained else node.mask
        logprobs += node.logprobs if node.sampled else [0.0] * len(node.token_ids)
    return token_ids, mask, logprobs


def optimizer_steps(samples: Sequence[Sample], global_batch_size: int) -> list[list[Sample]]:
    """The collection's samples by optimizer step; a step whose responses were all left out is dropped."""
    steps: dict[int, list[Sample]] = {}
    for sample in samples:
        steps.setdefault(sample.slot // global_batch_size, []).append(sample)
    return [steps[number] for number in sorted(steps)]
