"""One request on its way through the engine."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reroll.api import Completion, FinishReason, GenerationRequest, VersionSpan


@dataclass(eq=False)
class Active:
    """A request between submission and completion.

    Attributes:
        order: number of the submission; admission follows it.
        output_ids, logprobs: what was generated before the request last left the batch, int64 and float32;
            while it is in the batch the current ones are in the batch's arrays.
        starts: (version, first output index) for each version that it met.
        retracted: whether its cache has to be computed again.
    """

    request: GenerationRequest
    order: int
    future: Future[Completion]
    queued: float
    start: float | None = None
    first_token: float | None = None
    output_ids: Any = field(default_factory=lambda: np.zeros(0, np.int64))
    logprobs: Any = field(default_factory=lambda: np.zeros(0, np.float32))
    starts: list[tuple[int, int]] = field(default_factory=list)
    retracted: bool = False

    @property
    def tokens(self) -> Any:
        """Prompt and what was generated: what the cache is computed from, int64."""
        return np.concatenate((np.array(self.request.input_ids, np.int64), self.output_ids))

    @property
    def reserved(self) -> int:
        """Most tokens that the request will ever hold in the cache."""
        return len(self.request.input_ids) + self.request.sampling.max_new_tokens

    def completion(self, reason: FinishReason, end: float) -> Completion:
        timing = {"queued": self.queued, "start": self.start, "first_token": self.first_token, "end": end}
        return Completion(
            request_id=self.request.request_id,
            output_ids=self.output_ids.tolist(),
            logprobs=self.logprobs.tolist(),
            weight_versions=spans(self.starts, len(self.output_ids)),
            finish_reason=reason,
            seed=self.request.sampling.seed,
            timing={name: when for name, when in timing.items() if when is not None},
        )


def spans(starts: list[tuple[int, int]], length: int) -> list[VersionSpan]:
    """Spans over `length` tokens from (version, first index) pairs; versions without tokens are left out
    and neighbours of one version joined."""
    found: list[VersionSpan] = []
    ends = [*(start for _, start in starts[1:]), length][: len(starts)]
    for (version, start), end in zip(starts, ends, strict=True):
        if end <= start:
            continue
        if found and found[-1].version == version:
            found[-1] = VersionSpan(version, found[-1].start, end)
        else:
            found.append(VersionSpan(version, start, end))
    return found
