"""The worker's side of the scoring pool: makes verifiers when they are first asked, and asks them."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import os
import pickle
import resource
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reroll.api import Verdict, Verifier
from reroll.rollouts.scoring.contract import ContractViolation, checked, checked_group, described, failed
from reroll.rollouts.scoring.guard import start_guard
from reroll.rollouts.scoring.leftovers import VARIABLE
from reroll.rollouts.scoring.progress import LOADING, WORKING, ProgressPage
from reroll.workers.answering import load_target

LOG_BYTES = 1 << 20
"""What verifiers print is cut back to nothing above this size; it is only read for last words."""

SHOWN = 4000
"""Characters at either end of a long traceback that the log gets; an error may hold a whole answer."""

WORN_SHARE = 0.7
"""Of the memory limit, that a process may still hold after a call."""


class VerifierSpec(NamedTuple):
    """A verifier for the pool: `module:Class`, its options, and the distribution that errors name."""

    path: str
    config: Mapping[str, Any]
    distribution: str


class Call(NamedTuple):
    """One call: its number, the verifier, whether it is `score_group`, and the pickled `(task, traces)`."""

    number: int
    verifier: str
    group: bool
    payload: bytes


class Outcome(NamedTuple):
    """What became of a call that came back.

    Attributes:
        verdicts: one a trace; None if there are none, for one of the reasons that follow.
        seconds: the call's own time, without queueing and loading.
        skipped: not begun: the pool had taken the call back, or the call before it wore the process out.
        violation: how the verifier broke its contract.
        unloadable: why the verifier could not be made.
        unreadable: why the traces could not be read in the worker.
        worn: the process holds so much memory that it should be replaced.
    """

    verdicts: list[Verdict] | None = None
    seconds: float = 0.0
    skipped: bool = False
    violation: str = ""
    unloadable: str = ""
    unreadable: str = ""
    worn: bool = False


class ScoringWorker:
    """Runs in a process of its own; `judge` is called with numbers that only grow."""

    def __init__(self, verifiers: Mapping[str, VerifierSpec], page: str, memory_limit_bytes: int) -> None:
        # A group of its own, so that what a verifier starts dies with the worker.
        os.setpgid(0, 0)
        start_guard(os.environ.get(VARIABLE, ""))
        faulthandler.enable()
        self.pid = os.getpid()
        self.specs = verifiers
        self.progress = ProgressPage(Path(page))
        self.loaded: dict[str, Verifier] = {}
        self.calls = 0
        self.memory_limit = memory_limit_bytes
        limit_resources(memory_limit_bytes)
        # What a verifier printed must be in the log when its process is killed, which is how they all end.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)

    def judge(self, calls: Sequence[Call]) -> list[Outcome]:
        """One outcome a call."""
        outcomes: list[Outcome] = []
        for call in calls:
            if outcomes and outcomes[-1].worn:
                outcomes.append(Outcome(skipped=True, worn=True))
                continue
            try:
                outcomes.append(self._judge(call))
            except Exception as error:  # around the verifier, such as a log that it has closed: this call's alone
                outcomes.append(Outcome(unreadable=described(error)))
        return outcomes

    def _judge(self, numbered: Call) -> Outcome:
        call, name, group, payload = numbered
        if call <= self.progress.revoked:
            return Outcome(skipped=True)
        verifier = self.loaded.get(name)
        if verifier is None:
            self.progress.enter(LOADING, call, time.monotonic())
            try:
                verifier = self.loaded[name] = load_verifier(self.specs[name])
            except BaseException as error:  # SystemExit as well: the import's doing, not the pool's
                return Outcome(unloadable=described(error))
            finally:
                self._end_if_forked()
                self.progress.rest()
        self._bound_log()
        try:
            task, traces = pickle.loads(payload)
        except Exception as error:
            return Outcome(unreadable=described(error))
        verdicts, violation = None, ""
        begun = time.monotonic()
        self.progress.enter(WORKING, call, begun)
        try:
            if group:
                verdicts = checked_group(verifier.score_group(task, traces), len(traces))
            else:
                verdicts = [checked(verifier.score(task, trace)) for trace in traces]
        except ContractViolation as error:
            violation = str(error)
        except BaseException as error:  # SystemExit as well: a verifier cannot end the process
            verdicts = failed(error, len(traces))
            with contextlib.suppress(Exception):  # it may have closed the log
                print(_short(traceback.format_exc()), file=sys.stderr)  # the verdict says what failed, the log where
        finally:
            self._end_if_forked()
            self.progress.rest()
        seconds = time.monotonic() - begun
        return Outcome(verdicts, seconds, violation=violation, worn=self._worn())

    def _end_if_forked(self) -> None:
        """Ends a process that a verifier forked and let return: it would wait for calls that it never gets."""
        if os.getpid() != self.pid:
            os._exit(0)

    def _worn(self) -> bool:
        """Whether what verifiers keep between calls nears the limit: later calls would fail for it, and many
        a library reports that as an answer which it cannot read."""
        if not self.memory_limit or allocated_bytes() < WORN_SHARE * self.memory_limit:
            return False
        gc.collect()
        return allocated_bytes() >= WORN_SHARE * self.memory_limit

    def _bound_log(self) -> None:
        self.calls += 1
        if self.calls % 256 == 0:
            with contextlib.suppress(Exception):  # a verifier may have closed it
                sys.stdout.flush()
                if os.fstat(1).st_size > LOG_BYTES:
                    os.ftruncate(1, 0)


def _short(text: str) -> str:
    return text if len(text) <= 2 * SHOWN else f"{text[:SHOWN]}\n…\n{text[-SHOWN:]}"


def load_verifier(spec: VerifierSpec) -> Verifier:
    """Imports the class and makes the verifier; what it prepares for its first call is part of that.

    `warm_up` imports what `score` needs: a deadline counts from the start of the work, and a slow import is
    not yet that.
    """
    cls: Any = load_target(spec.path)
    verifier: Verifier = cls(cls.Config.model_validate(dict(spec.config)))
    verifier.warm_up()
    return verifier


def limit_resources(memory_bytes: int) -> None:
    """Bounds memory (0: not at all) and leaves no core files behind."""
    limits = [(resource.RLIMIT_CORE, 0)]
    if memory_bytes:
        # RLIMIT_DATA counts what is allocated. RLIMIT_AS would also count what is only mapped, which
        # numerical libraries do by the gigabyte.
        limits.append((resource.RLIMIT_DATA, memory_bytes))
    for kind, limit in limits:
        try:
            _, hard = resource.getrlimit(kind)
            if hard != resource.RLIM_INFINITY:
                limit = min(limit, hard)
            resource.setrlimit(kind, (limit, limit))
        except (OSError, ValueError):
            continue  # not enforced on this platform


def allocated_bytes() -> int:
    """What `RLIMIT_DATA` counts; 0 where it cannot be read."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[5]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0
