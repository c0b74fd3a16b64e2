"""Making checkpoints while a run goes on."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from reroll.api import RerollError
from reroll.checkpoints.config import CheckpointSection
from reroll.checkpoints.state import Identity, RunState
from reroll.checkpoints.store import CheckpointStore
from reroll.workers.together import uninterrupted

CLOSE_SECONDS = 30.0


class TrainerState(Protocol):
    """The trainer, as a checkpoint sees it."""

    def start_save(self, folder: Path, background: bool) -> Awaitable[Any]:
        """Has every rank write its part into `folder`. The state is that of the call, whatever is called next."""


@dataclass
class Checkpointer:
    """Writes a run's checkpoints, one at a time. One that cannot be written is told and missed; the run goes on, and
    the ones before it stay.

    Attributes:
        identity, settings, attempt: of the run; the same in all of its checkpoints.
        warn: told of a checkpoint that could not be written.
    """

    store: CheckpointStore
    trainer: TrainerState
    section: CheckpointSection
    identity: Identity
    settings: dict[str, Any]
    attempt: str
    warn: Callable[[str], None]
    missed: int = 0
    """Checkpoints of this start that could not be written."""
    last: Path | None = None
    """The last one that is whole."""
    missed_last: bool = False
    begun: RunState | None = None
    """What the last one holds that the trainer was told of, written or not."""
    _saving: asyncio.Task[None] | None = field(default=None, init=False)

    def is_due(self, collections: int) -> bool:
        """Whether one is to be made after so many collections."""
        return self.section.save_interval is not None and collections % self.section.save_interval == 0

    async def save(self, version: int, collection: int, **parts: Any) -> None:
        """Makes the checkpoint of `version`, with `collection` the next one. `parts` are the rest of `RunState`. With
        async_save this returns once the trainer was told; what it is told next comes after the state was copied."""
        await self.wait()
        state = RunState(
            version=version,
            engine_version=version,
            collection=collection,
            attempt=self.attempt,
            identity=self.identity,
            settings=self.settings,
            **parts,
        )
        try:
            # To its end: whoever stops the run makes a checkpoint next, in the same folder.
            folder = await uninterrupted(asyncio.to_thread(self.store.begin, version))
        except RerollError as error:
            self._missed(version, error)
            return
        calls = self.trainer.start_save(folder, self.section.async_save)
        self._saving = asyncio.create_task(self._write(folder, state, calls), name=f"checkpoint {version}")
        self.begun = state
        if not self.section.async_save:
            await self.wait()

    async def wait(self) -> None:
        """Until what is being written is whole."""
        if self._saving is not None:
            await asyncio.shield(self._saving)
            self._saving = None

    async def close(self) -> None:
        """The run ends: what cannot be written soon, because a rank has failed, is not waited for."""
        if self._saving is not None:
            await asyncio.wait({self._saving}, timeout=CLOSE_SECONDS)
            self._saving.cancel()

    async def _write(self, folder: Path, state: RunState, calls: Awaitable[Any]) -> None:
        try:
            await calls
            await asyncio.to_thread(self._complete, folder, state)
        except Exception as error:
            self._missed(state.version, error)
            with suppress(RerollError, OSError):
                await asyncio.to_thread(self.store.discard, state.version)
            return
        self.last, self.missed_last = folder, False
        try:
            await asyncio.to_thread(self.store.prune, self.section.keep_last, self.section.keep_every)
        except RerollError as error:
            self.warn(f"an old checkpoint stays: {error}")

    def _complete(self, folder: Path, state: RunState) -> None:
        state.write(folder)
        facts = {"run_id": state.identity.run_id, "attempt": state.attempt, "run_file_sha256": _digest(state.settings)}
        self.store.complete(state.version, state.collection, facts)

    def _missed(self, version: int, error: Exception) -> None:
        self.missed, self.missed_last = self.missed + 1, True
        self.warn(f"the checkpoint of step {version} could not be written: {error}; the ones before it stay")


def _digest(settings: dict[str, Any]) -> str:
    """SHA-256 of a resolved run file."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
