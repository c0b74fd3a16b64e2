"""New weights beside the served ones, and the swap."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import safe_open

from reroll.api import EngineError, RerollError, TensorSpec, WeightBucket
from reroll.models.digest import state_digest
from reroll.models.process_groups import Member, dtype_of, kind, receive

NAMED = 8
"""Names that an error lists before it counts the rest."""


class StagedWeights:
    """Collects a publication's tensors until they are complete.

    Threads stage and commits come after; the served tensors change in `commit` alone. What can be checked is
    checked while staging: a commit holds up every request. What is on its way while a commit or a failure ends the
    staging that it was for is refused, since it would become a part of another publication.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._lock = threading.Lock()
        self.staged: dict[str, Any] = {}
        self._served = model.state_dict(keep_vars=True)
        # A tied tensor has several names.
        names: dict[int, list[str]] = {}
        for name, tensor in self._served.items():
            names.setdefault(id(tensor), []).append(name)
        self._tensors = [(self._served[aliases[0]], aliases) for aliases in names.values()]
        self._tied = {name: aliases for aliases in names.values() if len(aliases) > 1 for name in aliases}
        self._unequal: dict[str, str] = {}  # first name of a tied tensor → why it cannot be served

    def stage(self, buckets: list[WeightBucket]) -> None:
        """Reads the buckets' tensors. Staged again, a name's newer tensor counts.

        Raises:
            EngineError: a file cannot be read, or a tensor's name, type or shape is not the model's.
                Everything staged so far is dropped.
        """
        with self._all_or_nothing() as staged:
            for bucket in buckets:
                tensors = _read(bucket)
                for name, tensor in tensors.items():
                    self._check(f"bucket {bucket.path}", name, tensor.dtype, tensor.shape)
                self._take(staged, tensors)

    def receive(self, member: Member, bucket: Sequence[TensorSpec], flattened: bool) -> None:
        """Takes the bucket's tensors from a process group; the same holds as for `stage`. What does not fit is refused
        before it is received."""
        with self._all_or_nothing() as staged:
            for spec in bucket:
                self._check(f"process group {member.group.name!r}", spec.name, dtype_of(spec), torch.Size(spec.shape))
            self._take(staged, receive(member, bucket, flattened))

    @contextmanager
    def _all_or_nothing(self) -> Iterator[dict[str, Any]]:
        """Gives the tensors that are staged now, to which others are added; with a failure they are dropped."""
        staged = self.staged
        try:
            yield staged
        except BaseException as error:
            with self._lock:
                if self.staged is staged:
                    self._renew()
            if isinstance(error, RerollError) and not isinstance(error, EngineError):
                raise EngineError(str(error)) from error
            raise

    def _renew(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Begins with nothing; gives what was staged and what is unequal in it."""
        ended = self.staged, self._unequal
        self.staged, self._unequal = {}, {}
        return ended

    def _check(self, source: str, name: str, dtype: torch.dtype, shape: torch.Size) -> None:
        if name not in self._served:
            raise EngineError(f"{source} holds {name!r}, which the served model does not have")
        wanted = self._served[name]
        if dtype != wanted.dtype or shape != wanted.shape:
            has = f"{kind(wanted.dtype)} {list(wanted.shape)}"
            raise EngineError(f"{source} holds {name!r} as {kind(dtype)} {list(shape)}, but the served model has {has}")

    def _take(self, staged: dict[str, Any], tensors: dict[str, Any]) -> None:
        with self._lock:
            if self.staged is not staged:
                raise EngineError(
                    "what was staged was committed or dropped while further tensors were on their way; send all again"
                )
            staged.update(tensors)
            for aliases in {self._tied[name][0]: self._tied[name] for name in tensors if name in self._tied}.values():
                self._compare(aliases)

    def _compare(self, aliases: list[str]) -> None:
        """Notes whether a tied tensor was staged unequal; the buckets to come may still change that."""
        self._unequal.pop(aliases[0], None)
        given = [name for name in aliases if name in self.staged]
        for name in given[1:]:
            if not torch.equal(self.staged[given[0]], self.staged[name]):
                reason = f"{given[0]!r} and {name!r} are one tensor in the model, but were staged unequal"
                self._unequal[aliases[0]] = reason

    def commit(self) -> None:
        """Serves the staged tensors; all of the model's must be there, of tied ones at least one name.

        Raises:
            EngineError: tensors are missing, or tied ones differ. What is served does not change.
        """
        with self._lock:
            staged, unequal = self._renew()
        missing, chosen = [], []
        for tensor, aliases in self._tensors:
            given = next((name for name in aliases if name in staged), None)
            if given is None:
                missing.append(aliases[0])
            else:
                chosen.append((tensor, staged[given]))
        if missing:
            total = len(self._tensors)
            raise EngineError(f"weights are not complete: {_listed(missing)} of {total} tensors were not staged")
        if unequal:
            raise EngineError(next(iter(unequal.values())))
        for old, new in chosen:
            old.data = new

    def digest(self) -> str:
        return state_digest(self.model.state_dict().items())


def _read(bucket: WeightBucket) -> dict[str, Any]:
    try:
        with safe_open(bucket.path, framework="pt") as file:
            absent = sorted(set(bucket.names) - set(file.keys()))
            if absent:
                raise EngineError(f"bucket {bucket.path} lacks {_listed(absent)}, which it was to hold")
            # Copied: the file may be written again as soon as this returns, and reading maps it.
            return {name: file.get_tensor(name).clone() for name in bucket.names}
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"bucket {bucket.path} cannot be read: {error}") from error


def _listed(names: list[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
