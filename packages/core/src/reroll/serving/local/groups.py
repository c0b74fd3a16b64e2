"""The process groups that bring weights to the engine."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from reroll.api import EngineError, RerollError, TensorSpec, WeightGroup
from reroll.models.process_groups import Member
from reroll.serving.local.weights import StagedWeights


class WeightGroups:
    """By name, those that were joined or are being joined.

    What happens in a group happens in the order of the calls, on a thread of its own: one in which the engine waits for
    a trainer holds up neither other groups nor what comes as files.
    """

    def __init__(self, weights: StagedWeights) -> None:
        self._weights = weights
        self._groups: dict[str, _Group] = {}
        self._lock = threading.Lock()

    def join(self, group: WeightGroup) -> Future[None]:
        """EngineError if the ranks do not meet, at once where the group is left meanwhile."""
        with self._lock:
            if group.name in self._groups:
                raise EngineError(
                    f"process group {group.name!r} was joined before, or is being joined; leave it first, or give "
                    "another name"
                )
            joined = self._groups[group.name] = _Group(group)
        joining = joined.thread.submit(joined.join)
        joining.add_done_callback(lambda done: self._forget(joined) if done.exception() else None)
        return joining

    def receive(self, name: str, bucket: Sequence[TensorSpec], flattened: bool) -> Future[None]:
        """Stages what the trainer broadcasts into the group; see `WeightStream`."""
        with self._lock:
            group = self._groups.get(name)
            if group is None:
                raise EngineError(f"process group {name!r} was not joined, or was left")
            return group.thread.submit(group.receive, self._weights, bucket, flattened)

    def leave(self, name: str) -> Future[None]:
        """Also of one that was not joined: after a failure nobody knows how far that came. Ends a join; where a
        broadcast is still waited for, this waits until the trainer leaves as well."""
        with self._lock:
            group = self._groups.pop(name, None)
        if group is None:
            nothing: Future[None] = Future()
            nothing.set_result(None)
            return nothing
        group.left.set()
        left = group.thread.submit(group.leave)
        group.thread.shutdown(wait=False)
        return left

    def _forget(self, group: _Group) -> None:
        """One that could not be joined may be tried again."""
        with self._lock:
            if self._groups.get(group.given.name) is group:
                del self._groups[group.given.name]
                group.thread.shutdown(wait=False)


class _Group:
    """The engine's place in one group. `thread` alone calls the methods; `left` ends what they wait for."""

    def __init__(self, group: WeightGroup) -> None:
        self.given = group
        self.left = threading.Event()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=group.name)
        self._member: Member | None = None

    def join(self) -> None:
        try:
            self._member = Member(self.given, rank=1, left=self.left)
        except RerollError as error:
            raise EngineError(str(error)) from error

    def receive(self, weights: StagedWeights, bucket: Sequence[TensorSpec], flattened: bool) -> None:
        if self._member is None:
            raise EngineError(f"process group {self.given.name!r} could not be joined; join it again")
        weights.receive(self._member, bucket, flattened)

    def leave(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            member.leave()
