"""The replay buffer: handles of what can be derived from the rollouts that a run saves, or has saved.

Records are never kept: a handle says where one is, and it is read again when it is drawn. By then its step may have
been moved aside or written again, so that every record is checked against its handle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reroll.api import Derivation
from reroll.replay.folders import rollouts_folder
from reroll.replay.records import number_from
from reroll.replay.steps import (
    Choice,
    Counts,
    Handle,
    Signature,
    StepIndex,
    read_step,
    signature_of,
    step_folders,
)
from reroll.traces.names import FILE

CAPACITY = 4096
RESCAN_SECONDS = 10.0
"""An online buffer looks for new steps this long after it last did."""


@dataclass
class Description(Counts):
    """What a buffer holds. Lines count as far as they were read: reading stops at the capacity.

    Attributes:
        candidates: handles that are held.
        offered: those that can be drawn; fewer where labels are balanced.
    """

    candidates: int = 0
    offered: int = 0


class ReplayBuffer:
    """Candidates for replay, newest step first and in the order of the file within a step.

    Offline, the folder is indexed once, whether steps are marked as whole or not, and what `pick` gives depends on
    nothing else. Online, only steps with a marker count, `refresh` finds new ones, and those that were written again.

    Threads may share it. A candidate that was discarded is offered no more as long as its file is unchanged; offline it
    keeps its place, so that picks are the same in every process, and reads as None.

    Args:
        folder: of a run, or with `step_N/train_rollouts.jsonl`. It may come to be later where `online`.
        source_envs: names of the data sources whose rollouts are taken; None for every rollout that was not derived
            itself.
        capacity: most candidates to hold; older ones are left out.
        seed: the run's data seed.
        warn: is told, once a step, how many of its lines were skipped, and why.
    """

    def __init__(
        self,
        folder: Path,
        derivation: Derivation,
        *,
        source_envs: Sequence[str] | None,
        capacity: int = CAPACITY,
        online: bool,
        seed: int,
        warn: Callable[[str], None],
    ) -> None:
        self._folder, self._derivation, self._capacity = folder, derivation, capacity
        self._online, self._seed, self._warn = online, seed, warn
        envs = None if source_envs is None else frozenset(source_envs)
        self._choice = Choice(derivation, envs, seed)
        self._scanning = threading.Lock()
        self._lock = threading.Lock()  # of everything below
        self._steps: dict[int, StepIndex] = {}
        self._offered: list[Handle] = []
        self._signatures: dict[Path, Signature] = {}
        self._discarded: dict[Path, tuple[Signature, set[Handle]]] = {}
        self._warned: dict[Path, Signature | str] = {}
        self._only_label: str | None = None
        self._told_one_sided = False
        self._scan()

    def __len__(self) -> int:
        """Candidates that are offered."""
        return len(self._offered)

    def pick(self, index: int, attempt: int = 0) -> Handle | None:
        """Candidate `index` + `attempt`, counted around; None where there is none."""
        offered = self._offered
        return offered[(index + attempt) % len(offered)] if offered else None

    def draw(self, request: int, attempt: int = 0) -> Handle | None:
        """A candidate by chance, which follows from the seed, `request` and `attempt`; None where there is none."""
        offered = self._offered
        return offered[number_from("draw", self._seed, request, attempt) % len(offered)] if offered else None

    def read(self, handle: Handle) -> dict[str, Any] | None:
        """The record of a candidate. None where something else is in its place, and the candidate is discarded, or
        where its file cannot be read now: that may pass, so that online its step is out until the next look."""
        with self._lock:
            if self._is_discarded(handle):
                return None
        try:
            return self._choice.read(handle)
        except OSError:  # moved aside, or on a disk that is away
            self._miss(handle.step)
        except Exception:  # torn, another record: whatever it is, nothing can be derived from it
            self.discard(handle)
        return None

    def discard(self, handle: Handle) -> None:
        """Takes a candidate out, until its file changes."""
        with self._lock:
            signature = self._signatures.get(handle.path)
            if signature is None or self._is_discarded(handle):
                return
            self._discarded[handle.path] = signature, self._discarded_from(handle.path, signature)
            self._discarded[handle.path][1].add(handle)
            index = self._steps.get(handle.step)
            if self._online and index is not None and handle in index.handles:
                self._steps[handle.step] = self._without_discarded(index)
                self._offer()

    def _miss(self, step: int) -> None:
        with self._lock:
            if self._online and self._steps.pop(step, None) is not None:
                self._offer()

    def refresh(self, force: bool = False) -> None:
        """Online, looks for steps that are new, were written again or have vanished, if it last did `RESCAN_SECONDS`
        ago. While one thread looks, the others go on with what is there.

        Args:
            force: look now, and wait for another thread that does.
        """
        if not self._online or not (force or time.monotonic() - self._scanned >= RESCAN_SECONDS):
            return
        if self._scanning.acquire(blocking=force):
            try:
                self._scan()
            except OSError as error:
                what = f"{self._folder} cannot be listed, and what was found before stays: {error}"
                self._warn_once(self._folder, str(error), what)
            finally:
                self._scanning.release()

    def describe(self) -> Description:
        """What the buffer holds, for a person."""
        with self._lock:
            steps, offered = list(self._steps.values()), len(self._offered)
        found = Description(candidates=sum(len(index.handles) for index in steps), offered=offered)
        for index in steps:
            found.add(index.counts)
        return found

    def _scan(self) -> None:
        self._scanned = time.monotonic()
        with self._lock:
            known = dict(self._steps)
        steps: dict[int, StepIndex] = {}
        room = self._capacity
        # Found anew: a run that is about to begin may have made its folder and nothing in it.
        for number, folder in step_folders(rollouts_folder(self._folder)):
            if room <= 0:
                break  # the other steps are older, and not even looked at
            index = self._step(number, folder, known.get(number), room)
            if index is not None:
                steps[number] = index
                room -= len(index.handles)
        with self._lock:
            # Here as well: a candidate may have been discarded since its step was read.
            self._steps = {number: self._without_discarded(index) for number, index in steps.items()}
            self._signatures |= {index.path: index.signature for index in steps.values()}
            self._offer()
        self._tell(steps)

    def _step(self, number: int, folder: Path, known: StepIndex | None, room: int) -> StepIndex | None:
        """The index of one step, at most `room` candidates; None where it is not there, or not whole yet."""
        try:
            signature = signature_of(folder, self._online)
            if signature is None:
                return None
            if known is None or known.signature != signature or not (known.whole or len(known.handles) >= room):
                path = folder / FILE
                with self._lock:
                    out = frozenset(self._discarded_from(path, signature))
                known = read_step(number, path, signature, self._choice, room, out)
        except OSError as error:
            self._warn_once(folder, str(error), f"{folder} cannot be read and is skipped: {error}")
            return None
        if len(known.handles) > room:
            known = replace(known, handles=known.handles[:room], whole=False)
        with self._lock:
            return self._without_discarded(known)

    def _is_discarded(self, handle: Handle) -> bool:
        signature = self._signatures.get(handle.path)
        return signature is not None and handle in self._discarded_from(handle.path, signature)

    def _discarded_from(self, path: Path, signature: Signature) -> set[Handle]:
        """The candidates that were discarded from a file as it is with this signature."""
        known, handles = self._discarded.get(path, (None, set[Handle]()))
        return handles if known == signature else set()

    def _without_discarded(self, index: StepIndex) -> StepIndex:
        out = self._discarded_from(index.path, index.signature)
        if not out:
            return index
        return replace(index, handles=tuple(handle for handle in index.handles if handle not in out))

    def _offer(self) -> None:
        """Swaps in what the steps offer."""
        newest_first = sorted(self._steps.items(), reverse=True)
        held = [handle for _, index in newest_first for handle in index.handles]
        balance = type(self._derivation).label is not Derivation.label
        self._offered, self._only_label = balanced(held, self._derivation.label) if balance else (held, None)

    def _tell(self, steps: dict[int, StepIndex]) -> None:
        """Warns of what the latest scan found and was not told yet."""
        for index in steps.values():
            if index.fault:
                self._warn_once(index.path, index.signature, index.fault)
        if self._only_label is not None and not self._told_one_sided:
            self._told_one_sided = True
            self._warn(
                f"all {len(self._offered)} candidates of {self._derivation.name!r} in {self._folder} have the label "
                f"{self._only_label!r}: they are offered without balance until there are others"
            )

    def _warn_once(self, path: Path, state: Signature | str, text: str) -> None:
        """Warns of what is wrong with a path, once as long as that stays the same."""
        if self._warned.get(path) != state:
            self._warned[path] = state
            self._warn(text)


def balanced(handles: list[Handle], label: Callable[[float], str | None]) -> tuple[list[Handle], str | None]:
    """As many candidates of each label, the first of each, in turns; after them those without a label. Where there is
    one label only, all of them, and that label."""
    classes: dict[str | None, list[Handle]] = {}
    for handle in handles:
        classes.setdefault(None if handle.reward is None else label(handle.reward), []).append(handle)
    without = classes.pop(None, [])
    if len(classes) < 2:
        return handles, next(iter(classes), None)
    turns = zip(*(classes[name] for name in sorted(classes, key=str)), strict=False)
    return [handle for turn in turns for handle in turn] + without, None
