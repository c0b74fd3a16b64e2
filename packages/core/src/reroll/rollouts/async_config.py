"""`[async]`: generation runs on while the trainer works, within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from reroll.api import ConfigSection, Problem, RunFile
from reroll.rollouts.buffer import CollectionSize
from reroll.rollouts.config import RolloutSection, times


class AsyncSection(ConfigSection):
    section: ClassVar[str] = "async"
    refused: ClassVar[Mapping[str, str]] = {
        "max_policy_lag": "the bound has one name here: async.max_weight_staleness, in optimizer steps",
    }

    fully_async: bool = False
    """True: generation and scoring go on while the trainer works. False: they take turns."""
    max_weight_staleness: int | None = Field(None, gt=0)
    """Optimizer steps that may lie between the weights of a group's oldest token and the step that uses it. Needed with
    fully_async; 1 is one step behind."""
    capacity_factor: float | None = Field(None, ge=1)
    """Groups that may be generated or wait for the trainer, in multiples of rollout.rollout_batch_size; by default as
    many as the staleness bound lets in."""
    max_concurrent_samples: int | None = Field(None, gt=0)
    """Most responses that are generated or scored at once, in whole groups; by default as many as the staleness bound
    lets in."""
    unused_samples_handler: Literal["retry", "drop"] = "retry"
    """What becomes of a group that is past the staleness bound: its task is dispatched again, or dropped."""

    def problems(self, run: RunFile) -> Iterator[Problem]:
        rollout = run.get(RolloutSection)
        if not self.fully_async:
            for name, field in type(self).model_fields.items():
                if getattr(self, name) != field.default:
                    yield Problem(
                        f"async.{name}",
                        f"is {getattr(self, name)!r}, but fully_async is false: it would do nothing",
                        f"set async.fully_async = true, or leave async.{name} out",
                    )
            return
        if self.max_concurrent_samples is not None and self.max_concurrent_samples < rollout.n_samples_per_prompt:
            yield Problem(
                "async.max_concurrent_samples",
                f"{self.max_concurrent_samples} is less than one group of {rollout.n_samples_per_prompt} responses, "
                "and groups are admitted whole",
                f"set it to {rollout.n_samples_per_prompt} or more",
            )
        if self.capacity_factor is not None and self.capacity_factor < rollout.over_sampling_factor:
            yield Problem(
                "async.capacity_factor",
                f"{self.capacity_factor} is less than rollout.over_sampling_factor = {rollout.over_sampling_factor}: "
                "the buffer could not hold a collection",
                f"set it to {rollout.over_sampling_factor} or more",
            )

    def size(self, rollout: RolloutSection, updates: int) -> CollectionSize:
        """What a collection of so many optimizer steps may hold. A synchronous run's groups are as old as the
        collection has steps before them."""
        bound = self.max_weight_staleness or updates - 1
        return CollectionSize(rollout.rollout_batch_size, rollout.most_groups, updates, bound)

    def capacity(self, size: CollectionSize) -> int:
        """Groups that may be under way or in the buffer."""
        if self.capacity_factor is None:
            return (size.ahead + 1) * size.most
        return max(times(self.capacity_factor, size.batch), size.most)

    def concurrent_groups(self, rollout: RolloutSection) -> int | None:
        """Most groups in flight, None for no bound."""
        most = self.max_concurrent_samples
        return most // rollout.n_samples_per_prompt if most is not None else None
