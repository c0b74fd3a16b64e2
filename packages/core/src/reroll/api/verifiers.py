"""Verifiers judge finished rollouts."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from reroll.api.component import Component

if TYPE_CHECKING:
    from reroll.api.tasks import Task
    from reroll.api.traces import Trace

VerdictState = Literal["ok", "completed", "timeout", "rejected", "service_error", "judge_error", "unknown"]
"""`ok`: judged, and the verifier vouches for it. `completed`: returned normally, no diagnostics of its
own. `timeout`: over the deadline. `rejected`: the answer was refused as hostile. `service_error`,
`judge_error`: the verifier or what it depends on failed. `unknown`: it could not judge."""

SCORED_STATES: frozenset[VerdictState] = frozenset({"ok", "completed", "rejected"})
"""States whose score is evidence about the answer; the others say that judging failed."""


@dataclass(frozen=True)
class Verdict:
    """What a verifier says of one answer.

    Attributes:
        score: usually 0 to 1; None where the verifier could not judge.
        components: named parts of the score. `parsed` (0 or 1) says whether an answer was found at
            all; the summary splits accuracy by it.
        state: how judging went; a failed verdict is a state, never a silent 0.
        detail: one line for a person.
    """

    score: float | None
    components: Mapping[str, float] = field(default_factory=dict)
    state: VerdictState = "ok"
    detail: str = ""

    @property
    def scored(self) -> bool:
        return self.score is not None and self.state in SCORED_STATES


class Verifier(Component):
    """Judges answers. Implement exactly one of `score` (plain or async) and `score_group`.

    A plain `score` is CPU work: it runs in a process that is killed when it passes the deadline, so it
    must not rely on state that survives between calls. An `async` one waits on a service: it runs on
    the event loop, at most `concurrency` calls at once; `ServiceVerifier` is one with retries.
    """

    concurrency: int = 32
    """For asynchronous verifiers: calls in flight. A class sets it, or an instance when it is made."""
    deadline_seconds: float | None = None
    """For asynchronous verifiers: seconds that one call may take, in place of `rollout.scoring.deadline_seconds`."""

    def warm_up(self) -> None:
        """Imports and prepares what judging needs; called once in each process, before its first call, and no
        deadline counts it. RerollError where it lacks what the user must give, such as a key."""
        return

    async def close(self) -> None:
        """Gives back what asynchronous calls hold, such as connections; awaited on the event loop of the calls, when
        none is out any more. The processes of plain verifiers are killed, without it."""
        return

    def score(self, task: Task, trace: Trace) -> Verdict | Awaitable[Verdict]:
        """Judges one rollout against `task.targets[self.name]`."""
        raise NotImplementedError

    def score_group(self, task: Task, traces: Sequence[Trace]) -> list[Verdict]:
        """Judges the rollouts of one task together; one verdict a trace, in order."""
        raise NotImplementedError

    def check_target(self, target: Any) -> str | None:
        """Why `target` can never be judged, or None; `reroll validate` asks it for every task."""
        return None
