"""From scored groups to the samples of a collection."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from reroll.api import Advantage, Group, PluginError, Sample, Trace


def group_samples(group: Group, advantage: Advantage, first_slot: int) -> list[Sample]:
    """One sample a branch of every response that has a reward; advantages are taken within the group.

    Args:
        first_slot: position in the collection of the group's first response. A response keeps its slot when
            siblings are left out, so that the cut into optimizer steps does not depend on failures.
    """
    scored = [index for index, reward in enumerate(group.rewards) if reward is not None]
    try:
        advantages = advantage.advantages(group.scored_rewards)
    except Exception as error:
        raise PluginError(f"advantage {advantage.name!r} raised {type(error).__name__}: {error}") from error
    if len(advantages) != len(scored) or not all(map(isfinite, advantages)):
        raise PluginError(f"advantage {advantage.name!r} gave {advantages!r} for {len(scored)} rewards")
    samples: list[Sample] = []
    for index, value, reward in zip(scored, advantages, group.scored_rewards, strict=True):
        trace = group.traces[index]
        for leaf in trace.leaves():
            token_ids, mask, logprobs = branch_tokens(trace, leaf)
            if any(mask):
                samples.append(
                    Sample(
                        token_ids=token_ids,
                        loss_mask=mask,
                        rollout_logprobs=logprobs,
                        advantage=value,
                        reward=reward,
                        group_index=group.group_index,
                        weight_version=min(trace.weight_versions, default=0),
                        slot=first_slot + index,
                    )
                )
    return samples


def branch_tokens(trace: Trace, leaf: int | None = None) -> tuple[list[int], list[bool], list[float]]:
    """Tokens, loss mask and engine log-probabilities of one branch, root first; 0.0 where nothing was sampled."""
    token_ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for node in trace.branch(leaf):
        token_ids += node.token_ids
        mask += node.mask
        logprobs += node.logprobs if node.sampled else [0.0] * len(node.token_ids)
    return token_ids, mask, logprobs


def optimizer_steps(samples: Sequence[Sample], global_batch_size: int) -> list[list[Sample]]:
    """The collection's samples by optimizer step; a step whose responses were all left out is dropped."""
    steps: dict[int, list[Sample]] = {}
    for sample in samples:
        steps.setdefault(sample.slot // global_batch_size, []).append(sample)
    return [steps[number] for number in sorted(steps)]
